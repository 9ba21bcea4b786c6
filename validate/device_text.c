/* SPDX-License-Identifier: MIT */
/* Error texts, and what to say when there is no card to use: apart from CUDA, so that tests without one
 * reach it. */
#include "device.h"

#include <stdarg.h>
#include <stdio.h>

static char error_text[512] = "no error";

enum { NO_DEVICE = 100, INSUFFICIENT_DRIVER = 35 }; /* cudaError_t */

const char *device_error(void)
{
    return error_text;
}

int device_fail(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(error_text, sizeof error_text, format, ap);
    va_end(ap);
    return -1;
}

int device_missing(int status, int driver, int built_with, const char *text)
{
    if (driver == 0)
        return device_fail("no NVIDIA driver on this machine; a GPU and its driver are needed");
    if (status == INSUFFICIENT_DRIVER || driver / 1000 < built_with / 1000)
        return device_fail(
            "the driver is for CUDA %d.%d, older than CUDA %d.%d, which this program "
            "was built with; update the driver, or build with an older CUDA Toolkit",
            driver / 1000, driver % 1000 / 10, built_with / 1000, built_with % 1000 / 10);
    if (status == NO_DEVICE)
        return device_fail("no GPU that CUDA can use; check nvidia-smi and CUDA_VISIBLE_DEVICES");
    return device_fail("no GPU that CUDA can use: %s; check nvidia-smi and CUDA_VISIBLE_DEVICES",
                       text);
}

int device_too_few(int count)
{
    return device_fail("this rank has no GPU of its own: CUDA shows %d on this host; start one "
                       "process for each (mpirun --map-by ppr:%d:node)",
                       count, count);
}
