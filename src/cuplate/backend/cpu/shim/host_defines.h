// What a kernel needs of this header is there without it.
#ifndef CUPLATE_HOST_DEFINES_H
#define CUPLATE_HOST_DEFINES_H
#endif
