// What a kernel needs of this header is there without it.
#ifndef CUPLATE_CUDA_RUNTIME_API_H
#define CUPLATE_CUDA_RUNTIME_API_H
#endif
