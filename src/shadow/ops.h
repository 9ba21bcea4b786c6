/* SPDX-License-Identifier: MIT */
/*
 * Operators, named and argued like their torch.* counterparts: what each allocates, saves and frees.
 *
 * Inputs are borrowed for the time of the call (a temporary among them is consumed at its end), results float. What is allocated
 * inside and not returned dies when the operator ends, the newest first: local variables of a C++ function.
 * docs/memory-model.md has the rules with their sources.
 */
#ifndef MP_OPS_H
#define MP_OPS_H

#include "shadow/autograd.h"
#include "shadow/record.h"

/* ---- writing an operator ---- */

#define MP_TENSORS(...)                                                                            \
    (int)(sizeof((struct mp_tensor *[]){__VA_ARGS__}) / sizeof(struct mp_tensor *)),               \
        (struct mp_tensor *[]){__VA_ARGS__}

/* An operator at work: its arguments are pinned, so that operators inside it do not consume them. */
struct mp_scope {
    const char *op; /* of the caller */
    int n_temporaries, n_args;
    unsigned pinned; /* bit per argument that this scope pinned */
    struct mp_tensor *args[MP_MAX_INPUTS];
};
struct mp_scope mp_begin(struct mp_runtime *rt, const char *op, int n, struct mp_tensor *const *args);
/** Everything allocated since mp_begin() dies except the result, then the temporaries among the arguments. */
struct mp_tensor *mp_end(struct mp_runtime *rt, const struct mp_scope *scope, struct mp_tensor *result);

/** A local variable of an operator: a temporary that operators inside do not consume; it dies with the scope. */
static inline struct mp_tensor *mp_keep(struct mp_tensor *t)
{
    if (t && t->temporary >= 0)
        t->pinned = true;
    return t;
}

/* ---- types ---- */

/** x.to(dtype) */
struct mp_tensor *mp_to(struct mp_runtime *rt, struct mp_tensor *x, enum mp_dtype dtype);
/** Result type of an operator on these tensors; scalars (0-d) count only across kinds. */
enum mp_dtype mp_promote(int n, struct mp_tensor *const *x);

/* ---- autocast (torch.autocast) ---- */

struct mp_autocast {
    bool enabled, owner;
    enum mp_dtype dtype;
};
void mp_autocast_enter(struct mp_runtime *rt, struct mp_autocast *outer, bool enabled, enum mp_dtype dtype);
/** The outermost region drops the cached weight casts. */
void mp_autocast_exit(struct mp_runtime *rt, const struct mp_autocast *outer);
/** Cast for an operator of the low-precision list, or of the float32 list; x itself outside autocast. */
struct mp_tensor *mp_cast_low(struct mp_runtime *rt, struct mp_tensor *x);
struct mp_tensor *mp_cast_float(struct mp_runtime *rt, struct mp_tensor *x);

/* ---- views ---- */

struct mp_tensor *mp_view(struct mp_runtime *rt, struct mp_tensor *x, struct mp_shape shape);
struct mp_tensor *mp_unsafe_view(struct mp_runtime *rt, struct mp_tensor *x, struct mp_shape shape);
struct mp_tensor *mp_reshape(struct mp_runtime *rt, struct mp_tensor *x, struct mp_shape shape);
struct mp_tensor *mp_transpose(struct mp_runtime *rt, struct mp_tensor *x, int a, int b);
struct mp_tensor *mp_permute(struct mp_runtime *rt, struct mp_tensor *x, int n, const int *dims);
struct mp_tensor *mp_expand(struct mp_runtime *rt, struct mp_tensor *x, struct mp_shape shape); /* -1: as it is */
struct mp_tensor *mp_unsqueeze(struct mp_runtime *rt, struct mp_tensor *x, int dim);
struct mp_tensor *mp_slice(struct mp_runtime *rt, struct mp_tensor *x, int dim, int64_t from, int64_t to);
/** x.chunk(n): parts of equal size, the last one shorter; each floats in out[i]. Returns how many there are. */
int mp_chunk(struct mp_runtime *rt, struct mp_tensor *x, int n, struct mp_tensor **out);
/** n parts of equal size; each floats in out[i]. */
void mp_split(struct mp_runtime *rt, struct mp_tensor *x, int n, int dim, struct mp_tensor **out);
/** n parts of the given sizes, which make up the dimension; each floats in out[i]. */
void mp_split_sizes(struct mp_runtime *rt, struct mp_tensor *x, int n, const int64_t *sizes, int dim, struct mp_tensor **out);
/** x[..., ::2] */
struct mp_tensor *mp_every_other(struct mp_runtime *rt, struct mp_tensor *x);
/** x[i] */
struct mp_tensor *mp_select_row(struct mp_runtime *rt, struct mp_tensor *x, int64_t i);
/** x[:, 0] */
struct mp_tensor *mp_select_first(struct mp_runtime *rt, struct mp_tensor *x);
struct mp_tensor *mp_clone(struct mp_runtime *rt, struct mp_tensor *x);
struct mp_tensor *mp_contiguous(struct mp_runtime *rt, struct mp_tensor *x);
/** A kernel runs that checks the indices it is given: the driver makes room for larger stacks and for messages. */
void mp_checks_indices(struct mp_runtime *rt);
/** The thread calls cuDNN. */
void mp_cudnn_handle(struct mp_runtime *rt);
struct mp_tensor *mp_cat(struct mp_runtime *rt, int n, struct mp_tensor *const *x, int dim);
/** The result in a wider type than the parts: cat converts as it copies, without a cast in between. */
struct mp_tensor *mp_cat_as(struct mp_runtime *rt, int n, struct mp_tensor *const *x, int dim, enum mp_dtype dtype);

/* ---- pointwise ---- */

/** The bare result of a pointwise kernel over x: broadcast shape, promoted type, layout of the operands. No graph. */
struct mp_tensor *mp_pointwise(struct mp_runtime *rt, int n, struct mp_tensor *const *x);
struct mp_tensor *mp_add(struct mp_runtime *rt, struct mp_tensor *a, struct mp_tensor *b);
struct mp_tensor *mp_sub(struct mp_runtime *rt, struct mp_tensor *a, struct mp_tensor *b);
struct mp_tensor *mp_mul(struct mp_runtime *rt, struct mp_tensor *a, struct mp_tensor *b);
struct mp_tensor *mp_add_number(struct mp_runtime *rt, struct mp_tensor *x, double number);
struct mp_tensor *mp_mul_number(struct mp_runtime *rt, struct mp_tensor *x, double number);
struct mp_tensor *mp_div_number(struct mp_runtime *rt, struct mp_tensor *x, double number);
struct mp_tensor *mp_neg(struct mp_runtime *rt, struct mp_tensor *x);
struct mp_tensor *mp_tanh(struct mp_runtime *rt, struct mp_tensor *x);
struct mp_tensor *mp_gelu(struct mp_runtime *rt, struct mp_tensor *x);
struct mp_tensor *mp_silu(struct mp_runtime *rt, struct mp_tensor *x);
struct mp_tensor *mp_relu(struct mp_runtime *rt, struct mp_tensor *x);
struct mp_tensor *mp_sigmoid(struct mp_runtime *rt, struct mp_tensor *x);
struct mp_tensor *mp_pow(struct mp_runtime *rt, struct mp_tensor *x, double exponent);
struct mp_tensor *mp_rsqrt(struct mp_runtime *rt, struct mp_tensor *x);
struct mp_tensor *mp_dropout(struct mp_runtime *rt, struct mp_tensor *x, double p);
/** torch.clamp(x, min=, max=) with 0-d tensors that need no gradient. */
struct mp_tensor *mp_clamp(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *minimum, struct mp_tensor *maximum);
/** x *= number: in place. */
void mp_scale_inplace(struct mp_runtime *rt, struct mp_tensor *x);
/** x.add_(y): in place. */
void mp_add_inplace(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *y);

/* ---- reductions ---- */

/** The bare result of a reduction over the dimensions in the bit mask, with the kernel's scratch buffers. No graph. */
struct mp_tensor *mp_reduce(struct mp_runtime *rt, struct mp_tensor *x, unsigned dims, bool keepdim);
/** Scratch of the reduction kernel: bytes[0] of partial results, bytes[1] of semaphores; 0 when it needs none. */
struct mp_card_reply mp_reduce_scratch(struct mp_card *card, const struct mp_tensor *x, unsigned dims);
/** Take it, and give it back. */
void mp_reduce_take_scratch(struct mp_runtime *rt, const struct mp_tensor *x, unsigned dims);
struct mp_tensor *mp_mean_last(struct mp_runtime *rt, struct mp_tensor *x);
struct mp_tensor *mp_sum(struct mp_runtime *rt, struct mp_tensor *x, int dim, bool keepdim);
/** F.softmax(x, dim=-1, dtype): dtype < 0: as autocast says. */
struct mp_tensor *mp_softmax(struct mp_runtime *rt, struct mp_tensor *x, int dtype);
struct mp_tensor *mp_layer_norm(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight, struct mp_tensor *bias);

/* ---- matrix products ---- */

struct mp_tensor *mp_mm(struct mp_runtime *rt, struct mp_tensor *a, struct mp_tensor *b);
struct mp_tensor *mp_addmm(struct mp_runtime *rt, struct mp_tensor *bias, struct mp_tensor *a, struct mp_tensor *b);
struct mp_tensor *mp_matmul(struct mp_runtime *rt, struct mp_tensor *a, struct mp_tensor *b);
/** F.linear(x, weight, bias); bias may be NULL. */
struct mp_tensor *mp_linear(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight, struct mp_tensor *bias);
/** F.linear of a matrix: no views around the product. bias may be NULL. */
struct mp_tensor *mp_linear_rows(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight, struct mp_tensor *bias);
/** cuBLAS (and cuBLASLt) workspace of this thread, at its first product. */
void mp_gemm_workspace(struct mp_runtime *rt, bool lt);

/* ---- embedding, indexing ---- */

struct mp_tensor *mp_embedding(struct mp_runtime *rt, struct mp_tensor *index, struct mp_tensor *weight);
/** padding_index: the row that gets no gradient; -1: none. */
struct mp_tensor *mp_embedding_padded(struct mp_runtime *rt, struct mp_tensor *index, struct mp_tensor *weight, int64_t padding_index);
/** Temporary buffers of CUB's device-wide scan and radix sort over n items. */
uint64_t mp_scan_temp(int64_t n, int64_t tile);
#define MP_SCAN_TILE 896    /* items of 8 bytes: cumsum, exclusive sums */
#define MP_UNIQUE_TILE 4480 /* unique by key */
uint64_t mp_sort_temp(int64_t n, int key_bits);

/** x[index], rows. */
struct mp_tensor *mp_index_rows(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *index);
/** x[first, second]: one element, or row of further dimensions, per pair. */
struct mp_tensor *mp_index_pairs(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *first, struct mp_tensor *second);
/** x.index_add_(0, index, source): in place. */
void mp_index_add_inplace(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *index, struct mp_tensor *source);
/** x.gather(-1, index) */
struct mp_tensor *mp_gather(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *index);
struct mp_tensor *mp_masked_fill(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *mask);
/** In place: another tensor on x's storage. */
struct mp_tensor *mp_masked_fill_inplace(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *mask);
/** torch.where(mask, x, other): a Python number becomes a tensor for the time, a 0-d tensor is one. */
struct mp_tensor *mp_where_number(struct mp_runtime *rt, struct mp_tensor *mask, struct mp_tensor *x);
struct mp_tensor *mp_where_scalar(struct mp_runtime *rt, struct mp_tensor *mask, struct mp_tensor *x);
/** base[..., from:to] = source: base keeps its storage and gets source's graph. */
void mp_assign_slice(struct mp_runtime *rt, struct mp_tensor *base, struct mp_tensor *source);

/* ---- mixture of experts ---- */

/** x.topk(k, dim=-1); both float. */
void mp_topk(struct mp_runtime *rt, struct mp_tensor *x, int64_t k, struct mp_tensor **values, struct mp_tensor **indices);
/** a /= b: another tensor on a's storage. */
struct mp_tensor *mp_div_inplace(struct mp_runtime *rt, struct mp_tensor *a, struct mp_tensor *b);
/** torch._grouped_mm: rows of x, in groups that end at offsets, times one matrix of weight [experts, in, out] each. */
struct mp_tensor *mp_grouped_mm(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight, struct mp_tensor *offsets);

/* ---- convolution ---- */

/** F.conv2d whose stride is its kernel: patches of an image. */
struct mp_tensor *mp_conv2d_patches(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight, struct mp_tensor *bias);

/* ---- loss ---- */

/** F.cross_entropy(logits, target), mean. */
struct mp_tensor *mp_cross_entropy(struct mp_runtime *rt, struct mp_tensor *logits, struct mp_tensor *target);
/** Liger's fused linear cross-entropy of input [rows, hidden] against weight [vocabulary, hidden], and its rows to a chunk. */
struct mp_tensor *mp_fused_linear_cross_entropy(struct mp_runtime *rt, struct mp_tensor *input, struct mp_tensor *weight,
                                                struct mp_tensor *target);
int64_t mp_fused_loss_chunk(int64_t rows, int64_t hidden, int64_t vocabulary);

/* ---- attention ---- */

/** F.scaled_dot_product_attention: the kernel that this card and these arguments choose. mask may be NULL. */
struct mp_tensor *mp_attention(struct mp_runtime *rt, struct mp_tensor *q, struct mp_tensor *k, struct mp_tensor *v,
                               struct mp_tensor *mask, double dropout, bool causal);

#endif
