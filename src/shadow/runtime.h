/* SPDX-License-Identifier: MIT */
/*
 * Tensors without data: storages, tensors, temporaries, Python frames.
 *
 * Memory is decided by lifetimes, and lifetimes by reference counts, as in CPython. Three kinds of owner exist:
 *
 *   temporaries   whatever an operator returns is *floating*: owned by the expression that is being evaluated, and
 *                 consumed by the operator it is passed to, or by the variable it is assigned to
 *   variables     mp_let(&frame, &x, value) is Python's `x = value`: the new value arrives, then the old one dies
 *   graph         autograd nodes own what their PyTorch counterparts save
 *
 * A model function opens a frame, names its locals in it and leaves it with its result:
 *
 *     static struct mp_tensor *mlp(struct mp_runtime *rt, const struct layer *l, struct mp_tensor *x)
 *     {
 *         struct mp_frame f;
 *         MP_MODULE(rt, &f, &x);                     // class MLP(nn.Module): def forward(self, x):
 *         mp_let(&f, &x, mp_linear(rt, x, l->fc));   //     x = self.fc(x)
 *         mp_let(&f, &x, mp_gelu(rt, x));            //     x = gelu(x)
 *         return mp_leave(&f, x);                    //     return x
 *     }
 *
 * nn.Module.__call__ keeps its arguments until the call returns (MP_MODULE); a plain function does not (MP_FUNCTION).
 * When a frame is left its variables die in the order in which they were first assigned, parameters first, then the arguments.
 *
 * C leaves the order of evaluation of arguments open, Python does not: an argument list holds at most one call that allocates.
 *
 * Errors: operators do not return them; they raise (longjmp) to the nearest mp_runtime_protect(). Everything lives in
 * the runtime's arena, so nothing has to be unwound.
 */
#ifndef MP_RUNTIME_H
#define MP_RUNTIME_H

#include <setjmp.h>

#include "base/arena.h"
#include "base/error.h"
#include "shadow/card.h"
#include "shadow/program.h"
#include "spec/dtype.h"

#define MP_MAX_DIMS 5

struct mp_shape {
    int n;
    int64_t d[MP_MAX_DIMS];
};
/** MP_SHAPE(batch, seq, -1): one -1 stands for "what is left". MP_SCALAR has no dimensions. */
#define MP_SHAPE(...)                                                                              \
    ((struct mp_shape){(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})
#define MP_SCALAR ((struct mp_shape){0, {0}})

/** Bytes of device memory. Its allocation is an ALLOC event, the end of its last reference a FREE. */
struct mp_storage {
    int32_t refs;
    uint32_t id;    /* of its ALLOC event; 0: no bytes, or not allocated at the moment */
    uint64_t bytes;
    uint8_t category, stream;
    uint16_t tag;   /* of its size: mp_storage_asked() */
    bool shared; /* record_stream(): another stream works on it, so that its end is noticed at the next allocation */
    struct mp_storage *lender, *borrower; /* mp_storage_borrow() */
    int32_t owner; /* number of the parameter it belongs to, where a wrapper shares weights out; 0: nobody's */
};

struct mp_node;

struct mp_tensor {
    int32_t refs;
    int32_t temporary; /* place among the runtime's temporaries while floating, else -1 */
    uint8_t dtype;     /* enum mp_dtype */
    bool pinned;       /* a floating argument that the operator at work still needs */
    bool requires_grad;
    uint8_t output_nr; /* which output of grad_fn */
    int16_t layer;     /* parameters only: the block they belong to; -1: none */
    struct mp_storage *storage;
    struct mp_tensor *base;        /* a view keeps its base */
    struct mp_node *grad_fn;       /* NULL: a leaf */
    struct mp_node *accumulator;   /* of a leaf; not owned */
    struct mp_tensor *grad;        /* of a leaf */
    struct mp_tensor *cast;        /* in the autocast cache; owned by the cache */
    const char *name;              /* parameters only */
    int32_t number;                /* place among the parameters that a wrapper watches, from 1; 0: not watched */
    struct mp_shape shape;
    int64_t stride[MP_MAX_DIMS];   /* in elements */
    int64_t offset;                /* of the first element in the storage, in elements */
};

/* A Python frame: variables by address, in order of first assignment. */
#define MP_FRAME_VARS 28
#define MP_FRAME_ARGS 8
struct mp_frame {
    struct mp_runtime *rt;
    struct mp_frame *up;
    struct mp_tensor **vars[MP_FRAME_VARS];
    struct mp_tensor *args[MP_FRAME_ARGS]; /* the argument tuple of nn.Module.__call__ */
    int n_vars, n_args;
    bool watched; /* a module, and somebody wants to know */
};

enum mp_thread { MP_THREAD_MAIN, MP_THREAD_BACKWARD, MP_THREADS };

/* Lists of free objects, so that the inner loop never asks the system for memory. */
struct mp_pool {
    void *free;
    size_t size;
};

/* Where a raise lands. */
struct mp_catch {
    jmp_buf jump;
    struct mp_catch *up;
    struct mp_frame *frame; /* frames opened after it are abandoned */
    int n_temporaries;
};

struct mp_saved_hook;
struct mp_layer;
struct mp_module;

/* What a wrapper of the model (data parallelism) wants to know of; each may be NULL. */
struct mp_hooks {
    void *context;
    /* a block is to run, inside its checkpoint: the hook runs it */
    void (*block)(struct mp_runtime *rt, void *context, const struct mp_layer *block, struct mp_tensor **args, struct mp_tensor **out);
    /* the gradient of a leaf has been accumulated; what came in lives on through a hook of the node (DDP), not through one that
     * register_post_accumulate_grad_hook() made */
    bool hooks_tensors;
    void (*accumulated)(struct mp_runtime *rt, void *context, struct mp_tensor *leaf);
    /* shadow/module.h: all four or none. linear_function: F.linear is DeepSpeed's (shadow/ops_matmul.c) */
    bool linear_function;
    void (*before_forward)(struct mp_runtime *rt, void *context, const struct mp_module *module);
    void (*after_forward)(struct mp_runtime *rt, void *context, const struct mp_module *module);
    void (*before_backward)(struct mp_runtime *rt, void *context, const struct mp_module *module);
    void (*after_backward)(struct mp_runtime *rt, void *context, const struct mp_module *module);
    /* all nodes of a backward pass have run; its root gradient still lives */
    void (*backward_done)(struct mp_runtime *rt, void *context);
};

struct mp_runtime {
    struct mp_arena arena;
    struct mp_pool storages, tensors, nodes, outputs, tasks;
    struct mp_program *program;
    struct mp_card card; /* for mp_ask() alone */
    struct memplan_error *err;

    struct mp_tensor **temporaries;
    int n_temporaries, cap_temporaries;
    struct mp_frame *frame;
    struct mp_catch *catch_error; /* any error ends the run */
    struct mp_catch *catch_stop;  /* early stop of a recomputation */
    struct mp_tensor **parked;    /* variables of abandoned frames: a traceback holds them for a while */
    int n_parked, cap_parked;

    /* autograd */
    uint64_t sequence_nr;
    uint32_t n_engines; /* engine runs so far */
    bool grad_enabled, training;
    enum mp_thread thread;
    struct mp_saved_hook *saved_hook; /* NULL: tensors are saved as they are */

    /* autocast */
    bool autocast;
    enum mp_dtype autocast_dtype;
    bool cache_open;
    struct mp_tensor **cached; /* leaves whose ->cast is set */
    int n_cached, cap_cached;

    /* what the next allocation is for */
    enum mp_category category;
    uint8_t stream;           /* 0: the main stream */
    int layer;
    int unit;                 /* of the parameter at hand, outside the blocks; -1: none */
    const char *op;

    const struct mp_hooks *hooks; /* NULL: the model is not wrapped */
    int leaf;                     /* calls under way of modules that have parameters: what is inside them is theirs */
    struct mp_tensor **buffers;   /* of the model, in order of creation; never freed */
    int n_buffers, cap_buffers;

    struct mp_storage *barrier;  /* of the process group: the last one leaves a byte; NULL: there was none */
    struct mp_storage **retired; /* shared storages that nobody holds any more; gone at the next allocation */
    int n_retired, cap_retired;

    struct mp_storage *workspace[MP_THREADS][2]; /* cuBLAS, cuBLASLt */
    uint32_t n_collectives; /* struct mp_phase */
    int64_t n_random; /* random operators so far: the seed of the next */
    double norm_eps;  /* of the model's norms; for records */
    unsigned loaded;  /* bit per enum mp_driver_event that has happened */
    unsigned kernels; /* bit per enum mp_attention_kernel that has run: loaded kernels take memory outside the allocator */
};

enum mp_attention_kernel { MP_KERNEL_CUDNN, MP_KERNEL_FLASH, MP_KERNEL_EFFICIENT, MP_KERNEL_MATH };

/** Ready a runtime that writes into program. The gpu must outlive it. */
void mp_runtime_init(struct mp_runtime *rt, const struct mp_gpu *gpu, struct mp_program *program, struct memplan_error *err);
void mp_runtime_release(struct mp_runtime *rt);
/** Call body(rt, context); an error raised inside comes back as status, with rt->err filled in. */
enum memplan_status mp_runtime_protect(struct mp_runtime *rt, void (*body)(struct mp_runtime *rt, void *context), void *context);
/** End the run with this error. */
_Noreturn void mp_raise(struct mp_runtime *rt, enum memplan_status status, const char *format, ...) MP_PRINTF(3, 4);
/** List t, which is owned already, among the model's buffers. Returns t. */
struct mp_tensor *mp_buffer_register(struct mp_runtime *rt, struct mp_tensor *t);
/** Arena memory, raising when there is none. */
void *mp_runtime_alloc(struct mp_runtime *rt, size_t size);

/** A zeroed object from a free list, and back. */
void *mp_pool_take(struct mp_runtime *rt, struct mp_pool *pool);
void mp_pool_give(struct mp_pool *pool, void *object);

/** A phase ends: "it0.mb0.fwd". */
void mp_mark(struct mp_runtime *rt, const char *format, ...) MP_PRINTF(2, 3);
void mp_empty_cache(struct mp_runtime *rt);
/** Used by record.c: operation number `index` ran here. */
void mp_op_event(struct mp_runtime *rt, uint32_t index);
/** The driver does something for the first time, taking `bytes` where that depends on the card; later calls do nothing. */
void mp_driver_event(struct mp_runtime *rt, enum mp_driver_event event, uint64_t bytes);
/** Likewise of the size that the card answered. */
void mp_driver_event_asked(struct mp_runtime *rt, enum mp_driver_event event, const struct mp_card_reply *reply, int size);
/** Write event number `index` of the program again, its storage `shift` further on; marks are the caller's. */
void mp_repeat_event(struct mp_runtime *rt, uint32_t index, uint32_t shift);

/** Put a question to the card: mp_ask(rt, question, numbers...). */
#define mp_ask(rt, question, ...)                                                                  \
    mp_card_ask(&(rt)->card, question, (const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

/* Storages. */
struct mp_storage *mp_storage_new(struct mp_runtime *rt, uint64_t bytes);
/** Of the size that the card answered. */
struct mp_storage *mp_storage_asked(struct mp_runtime *rt, const struct mp_card_reply *reply, int size);
void mp_storage_unref(struct mp_runtime *rt, struct mp_storage *storage);
/** Let go of, and take again, the memory while tensors keep pointing to the storage (untyped_storage().resize_). */
void mp_storage_resize(struct mp_runtime *rt, struct mp_storage *storage, uint64_t bytes);
/** The memory that s has now, for a holder that keeps it when s lets go of it: param.data = other. One at a time. Owned. */
struct mp_storage *mp_storage_borrow(struct mp_runtime *rt, struct mp_storage *s);
/** A scratch buffer that lives inside one operator. */
static inline void mp_scratch(struct mp_runtime *rt, uint64_t bytes) { mp_storage_unref(rt, mp_storage_new(rt, bytes)); }
/** From here on the storage counts as `category`. */
void mp_tag(struct mp_runtime *rt, struct mp_storage *storage, enum mp_category category);

/* Tensors. A result is floating unless it says otherwise. */
struct mp_tensor *mp_empty(struct mp_runtime *rt, struct mp_shape shape, enum mp_dtype dtype);
struct mp_tensor *mp_empty_strided(struct mp_runtime *rt, struct mp_shape shape, const int64_t *stride, enum mp_dtype dtype);
/** empty_like, memory format preserved. */
struct mp_tensor *mp_empty_like(struct mp_runtime *rt, const struct mp_tensor *like, enum mp_dtype dtype);
/** Another tensor on t's storage, without graph; base NULL: it is no view. */
struct mp_tensor *mp_alias(struct mp_runtime *rt, const struct mp_tensor *t, struct mp_shape shape, const int64_t *stride, struct mp_tensor *base);
/** t.detach(): same storage, base and layout, no graph. */
struct mp_tensor *mp_detach(struct mp_runtime *rt, const struct mp_tensor *t);

void mp_tensor_unref(struct mp_runtime *rt, struct mp_tensor *t);
static inline struct mp_tensor *mp_tensor_ref(struct mp_tensor *t)
{
    if (t)
        t->refs++;
    return t;
}
/** Own a value: a temporary is taken over, anything else gets another reference. NULL stays NULL. */
struct mp_tensor *mp_take(struct mp_runtime *rt, struct mp_tensor *value);
/** Give an owned reference back to the expression: it floats. */
struct mp_tensor *mp_float(struct mp_runtime *rt, struct mp_tensor *owned);
/** Drop a temporary that nobody wanted; other tensors are left alone. */
void mp_discard(struct mp_runtime *rt, struct mp_tensor *value);
/** Drop all temporaries but the first n, the newest first. */
void mp_discard_to(struct mp_runtime *rt, int n);

/* Layout. */
int64_t mp_numel(const struct mp_tensor *t);
uint64_t mp_nbytes(const struct mp_tensor *t);
void mp_contiguous_stride(const struct mp_shape *shape, int64_t *stride);
bool mp_is_contiguous(const struct mp_tensor *t);
bool mp_is_dense(const struct mp_tensor *t); /* non-overlapping and dense, in any order */
bool mp_same_shape(const struct mp_shape *a, const struct mp_shape *b);
/** Size of dimension i; negative i counts from the end. */
static inline int64_t mp_dim(const struct mp_tensor *t, int i) { return t->shape.d[i < 0 ? t->shape.n + i : i]; }

/* Frames. */
#define MP_VARS(...) ((struct mp_tensor **[]){__VA_ARGS__})
#define MP_N_VARS(...) (sizeof(MP_VARS(__VA_ARGS__)) / sizeof(struct mp_tensor **))
#define MP_MODULE(rt, f, ...) mp_enter(rt, f, true, MP_VARS(__VA_ARGS__), MP_N_VARS(__VA_ARGS__))
#define MP_FUNCTION(rt, f, ...) mp_enter(rt, f, false, MP_VARS(__VA_ARGS__), MP_N_VARS(__VA_ARGS__))
void mp_enter(struct mp_runtime *rt, struct mp_frame *f, bool module, struct mp_tensor **const *params, size_t n);
/** A frame without parameters. */
void mp_enter_empty(struct mp_runtime *rt, struct mp_frame *f);
/** var = value. var must be NULL before its first assignment. */
void mp_let(struct mp_frame *f, struct mp_tensor **var, struct mp_tensor *value);
/** del var; it keeps its place in the order. */
static inline void mp_del(struct mp_frame *f, struct mp_tensor **var) { mp_let(f, var, NULL); }
/** return value: variables and arguments die, the value floats in the caller. */
struct mp_tensor *mp_leave(struct mp_frame *f, struct mp_tensor *value);
/** One more value of a returned tuple, before mp_leave(): it floats in *out. */
void mp_give(struct mp_frame *f, struct mp_tensor **out, struct mp_tensor *value);

/* Used by checkpoint.c: unwinding of an early stop. */
_Noreturn void mp_raise_stop(struct mp_runtime *rt);
void mp_release_parked(struct mp_runtime *rt, int from);

#endif
