// What a kernel needs of this header is there without it.
#ifndef CUPLATE_DRIVER_TYPES_H
#define CUPLATE_DRIVER_TYPES_H
#endif
