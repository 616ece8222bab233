#define NEUROSHARD_KERNELS kernels_avx512
#include "kernels.inl"
