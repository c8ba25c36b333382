#error "the CPU backend has no 8-bit floating point (cuda_fp8.h): guard it with #ifndef __CUDA_CPU_SIM__"
