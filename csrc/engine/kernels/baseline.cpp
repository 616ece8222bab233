#define NEUROSHARD_KERNELS kernels_baseline
#include "kernels.inl"
