/* SPDX-License-Identifier: MIT */
/*
 * Matrix products through cuBLAS, on the workspace that the program allocated for it.
 *
 * cuBLAS thinks in columns: a row-major matrix is its own transpose there. So out = a b is asked
 * for as out' = b' a'.
 */
#include <cublas_v2.h>

#include "device.h"
#include "kernels.h"

static cublasHandle_t handle;

static int check(cublasStatus_t status, const char *what)
{
    return status == CUBLAS_STATUS_SUCCESS
               ? 0
               : device_fail("cuBLAS: %s: %s", what, cublasGetStatusString(status));
}

int k_gemm_open(void)
{
    return handle ? 0 : check(cublasCreate(&handle), "cublasCreate");
}

void k_gemm_close(void)
{
    if (handle)
        (void)cublasDestroy(handle);
    handle = NULL;
}

/* The last two dimensions as cuBLAS sees them. */
struct matrix {
    int64_t rows, columns, leading, batch_stride;
    bool by_rows; /* elements of a row lie side by side */
};

static bool as_matrix(const struct k_tensor *t, struct matrix *m)
{
    const int o = t->n - 2;
    m->rows = t->shape[o];
    m->columns = t->shape[o + 1];
    m->batch_stride = o ? t->stride[0] : 0;
    if (t->stride[o + 1] == 1 || m->columns == 1) {
        m->by_rows = true;
        m->leading = m->rows == 1 ? m->columns : t->stride[o];
        if (m->leading >= m->columns && (m->columns > 1 || t->stride[o] >= 1))
            return true;
    }
    if (t->stride[o] == 1 || m->rows == 1) {
        m->by_rows = false;
        m->leading = m->columns == 1 ? m->rows : t->stride[o + 1];
        return m->leading >= m->rows;
    }
    return false;
}

static cudaDataType_t cuda_type(int dtype)
{
    return dtype == K_F32 ? CUDA_R_32F : dtype == K_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* c' (columns x rows) = b' a', all row-major */
static int product(const struct matrix *a, const struct matrix *b, const struct matrix *c,
                   const struct k_tensor *ta, const struct k_tensor *tb, const struct k_tensor *tc,
                   int64_t batch, int add, int tf32)
{
    const float one = 1.0f, beta = add ? 1.0f : 0.0f;
    const cublasComputeType_t compute =
        tf32 && ta->dtype == K_F32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    return check(cublasGemmStridedBatchedEx_64(
                     handle, b->by_rows ? CUBLAS_OP_N : CUBLAS_OP_T,
                     a->by_rows ? CUBLAS_OP_N : CUBLAS_OP_T, c->columns, c->rows, a->columns, &one,
                     tb->data, cuda_type(tb->dtype), b->leading, b->batch_stride, ta->data,
                     cuda_type(ta->dtype), a->leading, a->batch_stride, &beta, tc->data,
                     cuda_type(tc->dtype), c->leading, c->batch_stride, batch, compute,
                     CUBLAS_GEMM_DEFAULT),
                 "a matrix product");
}

static struct matrix transposed(const struct matrix *m)
{
    return matrix{m->columns, m->rows, m->leading, m->batch_stride, !m->by_rows};
}

int k_gemm(const struct k_tensor *a, const struct k_tensor *b, const struct k_tensor *out, int add,
           int tf32, void *workspace, uint64_t workspace_bytes)
{
    struct matrix ma, mb, mc;
    const int o = out->n - 2;
    if (o < 0 || o > 1 || a->n != out->n || b->n != out->n || a->dtype != b->dtype ||
        a->dtype != out->dtype || !as_matrix(a, &ma) || !as_matrix(b, &mb) || !as_matrix(out, &mc))
        return k_gemm_plain(a, b, out, add);
    if (ma.rows != mc.rows || mb.columns != mc.columns || ma.columns != mb.rows)
        return device_fail("a matrix product: the shapes of its tensors do not go together");
    if (check(cublasSetWorkspace(handle, workspace, workspace_bytes), "cublasSetWorkspace"))
        return -1;
    const int64_t batch = o ? out->shape[0] : 1;
    if (mc.by_rows)
        return product(&ma, &mb, &mc, a, b, out, batch, add, tf32);
    const struct matrix ta = transposed(&ma), tb = transposed(&mb), tc = transposed(&mc);
    return product(&tb, &ta, &tc, b, a, out, batch, add, tf32);
}

/* ---- loading ---- */

enum { N = 256, DATA_BYTES = 1 << 20, WORKSPACE_BYTES = 32 << 20 };

static int warm_type(int dtype, uint64_t memory)
{
    const struct k_tensor plain = {(void *)(uintptr_t)memory, dtype, 2, {N, N}, {N, 1}};
    struct k_tensor turned = plain, out = plain;
    turned.stride[0] = 1;
    turned.stride[1] = N;
    out.data = (char *)plain.data + 4 * N * N;
    const struct k_tensor *const factors[] = {&plain, &turned};
    for (int i = 0; i < 4; i++)
        if (k_gemm(factors[i / 2], factors[i % 2], &out, 0, 0,
                   (void *)(uintptr_t)(memory + DATA_BYTES), WORKSPACE_BYTES))
            return -1;
    return 0;
}

int k_warm(void)
{
    const uint64_t memory = device_malloc(DATA_BYTES + WORKSPACE_BYTES);
    if (!memory)
        return device_fail("no room on the GPU for 33 MiB: another process fills the card; wait "
                           "for it or choose another card");
    int status = k_load() || device_memset(memory, 0, DATA_BYTES) ? -1 : 0;
    for (int dtype = K_F16; dtype <= K_F32 && !status; dtype++)
        status = warm_type(dtype, memory);
    if (device_wait())
        status = -1;
    device_free(memory);
    return status;
}
