// What a kernel needs of this header is there without it.
#ifndef CUPLATE_VECTOR_FUNCTIONS_H
#define CUPLATE_VECTOR_FUNCTIONS_H
#endif
