#define NEUROSHARD_KERNELS kernels_avx2
#include "kernels.inl"
