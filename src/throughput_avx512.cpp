#define NEUROSHARD_LOOPS loops_avx512
#define NEUROSHARD_VECTOR_BYTES 64
#include "throughput_loops.inl"
