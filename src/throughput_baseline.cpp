#define NEUROSHARD_LOOPS loops_baseline
#define NEUROSHARD_VECTOR_BYTES 16
#include "throughput_loops.inl"
