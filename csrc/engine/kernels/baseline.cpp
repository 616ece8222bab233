#define NEUROSHARD_KERNELS kernels_baseline
#define NEUROSHARD_VECTOR_BYTES 16
#include "kernels.inl"
