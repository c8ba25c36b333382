// What a kernel needs of this header is there without it.
#ifndef CUPLATE_MATH_FUNCTIONS_H
#define CUPLATE_MATH_FUNCTIONS_H
#endif
