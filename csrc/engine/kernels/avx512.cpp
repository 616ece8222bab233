#define NEUROSHARD_KERNELS kernels_avx512
#define NEUROSHARD_VECTOR_BYTES 64
#include "kernels.inl"
