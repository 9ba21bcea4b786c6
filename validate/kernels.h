/* SPDX-License-Identifier: MIT */
/*
 * The operations of a program as kernels. Plain C, so that the executor need not know CUDA.
 *
 * Every function queues work on the device's one stream and returns 0, or -1 with the reason in
 * device_error(). Tensors are views: a pointer to the first element, sizes and strides in elements;
 * operands with fewer dimensions, or with size 1 where the result has more, are broadcast. What a
 * kernel computes with is float32; sums over many elements are float64.
 *
 * The same file compiles for the host (tests without a GPU): see kernels.cu.
 */
#ifndef KERNELS_H
#define KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define K_MAX_DIMS 5

/* In the order of memplan's enum mp_dtype. */
enum k_dtype { K_BOOL, K_U8, K_I32, K_I64, K_F16, K_BF16, K_F32 };

struct k_tensor {
    void *data;
    int dtype;
    int n;
    int64_t shape[K_MAX_DIMS], stride[K_MAX_DIMS];
};

enum k_unary {
    K_COPY,
    K_NEG,
    K_TANH,
    K_GELU,
    K_SILU,
    K_RELU,
    K_SIGMOID,
    K_RSQRT,
    K_COS,
    K_SIN,
    K_ADD_NUMBER,
    K_MUL_NUMBER,
    K_DIV_NUMBER,
    K_POW,
    K_ADDITIVE_MASK, /* true: 0, false: the smallest number of the result's type */
};
enum k_binary {
    K_ADD,
    K_SUB,
    K_MUL,
    /* gradients: first operand the incoming one, second what was saved */
    K_TANH_BACKWARD,
    K_GELU_BACKWARD,
    K_SILU_BACKWARD,
    K_RELU_BACKWARD,
    K_SIGMOID_BACKWARD,
    K_RSQRT_BACKWARD,
    K_POW_BACKWARD,
    K_DROPOUT_BACKWARD,
};

int k_fill(const struct k_tensor *out, double value);
int k_arange(const struct k_tensor *out);
int k_normal(const struct k_tensor *out, double std, uint64_t seed);
/** theta^(-2i / (2n)) */
int k_rotary_frequencies(const struct k_tensor *out, double theta);
int k_unary(enum k_unary op, const struct k_tensor *x, const struct k_tensor *out, double number);
int k_binary(enum k_binary op, const struct k_tensor *a, const struct k_tensor *b,
             const struct k_tensor *out, double number);
int k_dropout(const struct k_tensor *x, const struct k_tensor *out, const struct k_tensor *mask,
              double p, uint64_t seed);
/** Sum over the dimensions in the bit mask, times factor. out has them as 1, or left out. */
int k_sum(const struct k_tensor *x, const struct k_tensor *out, unsigned dims, double factor);
/** Over the last dimension. */
int k_softmax(const struct k_tensor *x, const struct k_tensor *out, int logarithm);
int k_softmax_backward(const struct k_tensor *grad, const struct k_tensor *saved,
                       const struct k_tensor *out, int logarithm);
int k_layer_norm(const struct k_tensor *x, const struct k_tensor *weight,
                 const struct k_tensor *bias, const struct k_tensor *out,
                 const struct k_tensor *mean, const struct k_tensor *rstd, double eps);
/** Results may be NULL. */
int k_layer_norm_backward(const struct k_tensor *grad, const struct k_tensor *x,
                          const struct k_tensor *mean, const struct k_tensor *rstd,
                          const struct k_tensor *weight, const struct k_tensor *dx,
                          const struct k_tensor *dweight, const struct k_tensor *dbias);
int k_embedding(const struct k_tensor *index, const struct k_tensor *table,
                const struct k_tensor *out);
int k_embedding_backward(const struct k_tensor *grad, const struct k_tensor *index,
                         const struct k_tensor *out, int64_t padding_index);
int k_nll_loss(const struct k_tensor *logp, const struct k_tensor *target,
               const struct k_tensor *loss, const struct k_tensor *weight, int64_t ignore);
int k_nll_loss_backward(const struct k_tensor *grad, const struct k_tensor *target,
                        const struct k_tensor *weight, const struct k_tensor *out, int64_t ignore);
/**
 * given: NULL, or which keys count, [batch, keys]. out: [..., batch, 1, queries, keys] or [queries,
 * keys]; bool, or additive.
 */
int k_attention_mask(const struct k_tensor *given, const struct k_tensor *out, int causal,
                     int64_t sliding);

struct k_attention {
    double scale, p;
    int causal;
    uint64_t seed;
};
/**
 * q, k, v: [batch, heads, seq, dim], dim at most 256, fewer key heads allowed. mask, lse may be
 * NULL.
 */
int k_attention(const struct k_attention *a, const struct k_tensor *q, const struct k_tensor *k,
                const struct k_tensor *v, const struct k_tensor *mask, const struct k_tensor *out,
                const struct k_tensor *lse);
int k_attention_backward(const struct k_attention *a, const struct k_tensor *grad,
                         const struct k_tensor *q, const struct k_tensor *k,
                         const struct k_tensor *v, const struct k_tensor *mask,
                         const struct k_tensor *out, const struct k_tensor *lse,
                         const struct k_tensor *dq, const struct k_tensor *dk,
                         const struct k_tensor *dv);

struct k_adamw {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step;
};
/** found_inf NULL: never skipped. */
int k_adamw(const struct k_adamw *a, const struct k_tensor *p, const struct k_tensor *g,
            const struct k_tensor *m, const struct k_tensor *v, const struct k_tensor *found_inf);
int k_sgd(const struct k_tensor *p, const struct k_tensor *g, const struct k_tensor *momentum,
          const struct k_tensor *found_inf, double lr, double factor, int first);
/** A float32 of the program's own, 0-d: for what a job has no memory for. */
int k_scratch(struct k_tensor *number);
/** total += sum of squares (total: float32, 0-d). */
int k_add_squares(const struct k_tensor *g, const struct k_tensor *total);
/** g *= min(1, max_norm / (total + eps)), total being the norm; and total = sqrt(total). */
int k_sqrt_inplace(const struct k_tensor *total);
int k_clip(const struct k_tensor *g, const struct k_tensor *total, double max_norm, double eps);
/** g /= scale; found_inf = 1 where a result is not finite. */
int k_unscale(const struct k_tensor *g, const struct k_tensor *scale,
              const struct k_tensor *found_inf);
int k_update_scale(const struct k_tensor *scale, const struct k_tensor *tracker,
                   const struct k_tensor *found_inf, double growth, double backoff,
                   int64_t interval);

/** out = a b (+ out when add), [m, k] x [k, n] or with a batch dimension in front; gemm.cu. */
int k_gemm(const struct k_tensor *a, const struct k_tensor *b, const struct k_tensor *out, int add,
           int tf32, void *workspace, uint64_t workspace_bytes);
/**
 * Load what is loaded at first use: every kernel, and a product of each type. The context does not
 * grow afterwards by these.
 */
int k_warm(void);
/** The kernels alone: part of k_warm(). */
int k_load(void);

struct k_launches {
    const char *kernel;
    uint64_t n;
};
/** The kernels that this process has launched; returns their number. */
int k_launches(const struct k_launches **launches);

/** Open and close cuBLAS. */
int k_gemm_open(void);
void k_gemm_close(void);

/** The plain product, for layouts that cuBLAS does not take (and for the host). */
int k_gemm_plain(const struct k_tensor *a, const struct k_tensor *b, const struct k_tensor *out,
                 int add);

#ifdef __cplusplus
}
#endif

#endif
