// What a kernel needs of this header is there without it.
#ifndef CUPLATE_CUDA_RUNTIME_H
#define CUPLATE_CUDA_RUNTIME_H
#endif
