// What a kernel needs of this header is there without it.
#ifndef CUPLATE_BUILTIN_TYPES_H
#define CUPLATE_BUILTIN_TYPES_H
#endif
