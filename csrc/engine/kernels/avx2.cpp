#define NEUROSHARD_KERNELS kernels_avx2
#define NEUROSHARD_VECTOR_BYTES 32
#include "kernels.inl"
