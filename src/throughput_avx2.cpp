#define NEUROSHARD_LOOPS loops_avx2
#define NEUROSHARD_VECTOR_BYTES 32
#include "throughput_loops.inl"
