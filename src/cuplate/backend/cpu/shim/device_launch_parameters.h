// What a kernel needs of this header is there without it.
#ifndef CUPLATE_DEVICE_LAUNCH_PARAMETERS_H
#define CUPLATE_DEVICE_LAUNCH_PARAMETERS_H
#endif
