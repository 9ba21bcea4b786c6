/* SPDX-License-Identifier: MIT */
/* Element types of tensors. */
#ifndef MP_DTYPE_H
#define MP_DTYPE_H

#include "base/common.h"

/*    name   bytes  rank: type promotion takes the higher one (bf16 and fp16 never meet here) */
#define MP_DTYPE_MAP(X)                                                                            \
    X(BOOL, "bool", 1, 0)                                                                          \
    X(U8, "uint8", 1, 1)                                                                           \
    X(I32, "int32", 4, 2)                                                                          \
    X(I64, "int64", 8, 3)                                                                          \
    X(F16, "float16", 2, 4)                                                                        \
    X(BF16, "bfloat16", 2, 4)                                                                      \
    X(F32, "float32", 4, 5)

enum mp_dtype {
#define X(name, text, bytes, rank) MP_##name,
    MP_DTYPE_MAP(X)
#undef X
};

static inline unsigned mp_dtype_bytes(enum mp_dtype dtype)
{
    static const unsigned char bytes[] = {
#define X(name, text, bytes, rank) bytes,
        MP_DTYPE_MAP(X)
#undef X
    };
    return bytes[dtype];
}

static inline unsigned mp_dtype_rank(enum mp_dtype dtype)
{
    static const unsigned char ranks[] = {
#define X(name, text, bytes, rank) rank,
        MP_DTYPE_MAP(X)
#undef X
    };
    return ranks[dtype];
}

static inline bool mp_dtype_is_half(enum mp_dtype dtype)
{
    return dtype == MP_F16 || dtype == MP_BF16;
}
static inline bool mp_dtype_is_floating(enum mp_dtype dtype)
{
    return dtype >= MP_F16;
}

const char *mp_dtype_name(enum mp_dtype dtype);

#endif
