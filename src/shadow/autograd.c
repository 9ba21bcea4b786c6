/* SPDX-License-Identifier: MIT */
/*
 * The engine: ready nodes by descending sequence number, gradients stolen, added in place or summed anew.
 *
 * One node, in order (torch/csrc/autograd/engine.cpp, python_variable aside):
 *
 *     unpack saved ─> backward ─> let unpacked go ─> sum and cast each gradient to its input ─> incoming gradients die
 *         ─> saved die ─> gradients move to the next buffers
 *
 * A second gradient for the same input is added in place only if the first is dense and nobody else holds its tensor or
 * storage; a view's base holds the storage, so gradients that left through a view cost a new tensor. Whether tied weights
 * take two or three times V*h follows from that.
 */
#include "shadow/autograd.h"

#include "shadow/module.h"
#include "shadow/ops.h"

/* AccumulateGrad comes before everything else that is ready. */
#define SEQUENCE_MAX UINT64_MAX

static const struct mp_node_type accumulate_grad_type = {"AccumulateGrad", NULL};
static const struct mp_node_type graph_root_type = {"GraphRoot", NULL};

/* ---- building the graph ---- */

/* The node that takes t's gradient: its grad_fn, or the leaf's AccumulateGrad. Owned by the caller. */
static struct mp_edge gradient_edge(struct mp_runtime *rt, struct mp_tensor *t)
{
    if (!t || !t->requires_grad)
        return (struct mp_edge){NULL, 0};
    if (t->grad_fn) {
        t->grad_fn->refs++;
        return (struct mp_edge){t->grad_fn, t->output_nr};
    }
    if (t->accumulator) {
        t->accumulator->refs++;
        return (struct mp_edge){t->accumulator, 0};
    }
    struct mp_node *n = mp_pool_take(rt, &rt->nodes);
    n->refs = 1;
    n->type = &accumulate_grad_type;
    n->sequence_nr = SEQUENCE_MAX;
    n->layer = (int16_t)rt->layer;
    n->variable = mp_tensor_ref(t);
    n->output = (struct mp_meta){t->shape, t->dtype};
    n->n_outputs = 1;
    t->accumulator = n;
    return (struct mp_edge){n, 0};
}

bool mp_needs_grad(const struct mp_runtime *rt, int n, struct mp_tensor *const *inputs)
{
    if (!rt->grad_enabled)
        return false;
    for (int i = 0; i < n; i++)
        if (inputs[i] && inputs[i]->requires_grad)
            return true;
    return false;
}

struct mp_node *mp_node_new(struct mp_runtime *rt, const struct mp_node_type *type, int n, struct mp_tensor *const *inputs)
{
    if (!mp_needs_grad(rt, n, inputs))
        return NULL;
    struct mp_node *node = mp_pool_take(rt, &rt->nodes);
    node->type = type;
    node->sequence_nr = rt->sequence_nr++;
    node->layer = (int16_t)rt->layer;
    node->in_module = rt->leaf > 0;
    node->n_inputs = (uint8_t)n;
    for (int i = 0; i < n; i++)
        node->inputs[i] = gradient_edge(rt, inputs[i]);
    return node;
}

void mp_save(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor *input)
{
    if (!n)
        return;
    struct mp_saved *saved = &n->saved[n->n_saved++];
    if (!input)
        return;
    if (rt->saved_hook) {
        bool stop = false;
        *saved = rt->saved_hook->pack(rt, rt->saved_hook, input, &stop);
        if (stop) { /* the operator is abandoned, and its half-made node with it */
            n->refs = 1;
            mp_node_unref(rt, n);
            mp_raise_stop(rt);
        }
        return;
    }
    saved->tensor = mp_tensor_ref(input);
    if (input->storage->category == MP_CATEGORY_TEMPORARY)
        mp_tag(rt, input->storage, MP_CATEGORY_ACTIVATION);
}

/* A result is saved without its graph, or it would hold itself. */
void mp_save_output(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor *output)
{
    if (!n)
        return;
    struct mp_tensor *t = mp_detach(rt, output);
    mp_save(rt, n, t);
    mp_discard(rt, t);
}

/* Where the shape of the node's next output goes. */
static struct mp_meta *next_output(struct mp_runtime *rt, struct mp_node *n)
{
    const int i = n->n_outputs++;
    if (i > 0 && !n->others)
        n->others = mp_pool_take(rt, &rt->outputs);
    return i > 0 ? &n->others[i - 1] : &n->output;
}

void mp_track(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor *output)
{
    if (!n)
        return;
    output->requires_grad = true;
    output->grad_fn = n;
    output->output_nr = n->n_outputs;
    n->refs++;
    *next_output(rt, n) = (struct mp_meta){output->shape, output->dtype};
}

void mp_track_none(struct mp_runtime *rt, struct mp_node *n)
{
    if (n)
        (void)next_output(rt, n);
}

static void drop_saved(struct mp_runtime *rt, struct mp_saved *saved)
{
    if (saved->tensor)
        mp_tensor_unref(rt, saved->tensor);
    else if (saved->recompute)
        mp_recompute_drop(rt, saved);
    *saved = (struct mp_saved){0};
}

/*
 * A graph dies iteratively, as PyTorch's deleteNode does: a node drops its saved variables, then its edges; a node that nobody
 * else holds goes on a stack. The stack is threaded through sequence_nr, which a dying node no longer needs.
 */
void mp_node_unref(struct mp_runtime *rt, struct mp_node *n)
{
    if (--n->refs > 0)
        return;
    struct mp_node *stack = n;
    n->task = NULL;
    while (stack) {
        struct mp_node *dying = stack;
        stack = (struct mp_node *)dying->task;
        for (int i = 0; i < dying->n_saved; i++)
            drop_saved(rt, &dying->saved[i]);
        for (int i = 0; i < dying->n_inputs; i++) {
            struct mp_node *next = dying->inputs[i].node;
            if (next && --next->refs == 0) {
                next->task = (struct mp_task *)stack;
                stack = next;
            }
        }
        if (dying->call)
            mp_checkpoint_call_free(rt, dying->call);
        if (dying->variable) {
            dying->variable->accumulator = NULL;
            mp_tensor_unref(rt, dying->variable);
        }
        if (dying->others)
            mp_pool_give(&rt->outputs, dying->others);
        mp_pool_give(&rt->nodes, dying);
    }
}

/* ---- the ready queue ---- */

/* std::priority_queue of libstdc++: equal keys come out in the order its push_heap and pop_heap leave them. */
struct ready_queue {
    struct mp_node **nodes;
    int n, capacity;
};

static void ready_push(struct mp_runtime *rt, struct ready_queue *q, struct mp_node *n)
{
    if (q->n == q->capacity) {
        const int wanted = q->capacity ? q->capacity * 2 : 64;
        struct mp_node **bigger = mp_runtime_alloc(rt, (size_t)wanted * sizeof(struct mp_node *));
        if (q->n)
            memcpy(bigger, q->nodes, (size_t)q->n * sizeof(struct mp_node *));
        q->nodes = bigger;
        q->capacity = wanted;
    }
    int i = q->n++;
    while (i > 0 && q->nodes[(i - 1) / 2]->sequence_nr < n->sequence_nr) {
        q->nodes[i] = q->nodes[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    q->nodes[i] = n;
}

static struct mp_node *ready_pop(struct ready_queue *q)
{
    struct mp_node **a = q->nodes, *top = a[0], *last = a[--q->n];
    const int n = q->n;
    if (n == 0)
        return top;
    int hole = 0, child = 0;
    while (child < (n - 1) / 2) {
        child = 2 * (child + 1);
        if (a[child]->sequence_nr < a[child - 1]->sequence_nr)
            child--;
        a[hole] = a[child];
        hole = child;
    }
    if (n % 2 == 0 && child == (n - 2) / 2) {
        child = 2 * (child + 1);
        a[hole] = a[child - 1];
        hole = child - 1;
    }
    while (hole > 0 && a[(hole - 1) / 2]->sequence_nr < last->sequence_nr) {
        a[hole] = a[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    a[hole] = last;
    return top;
}

/* ---- running it ---- */

/* Every node reachable from the roots gets a task that counts the edges into it. */
struct node_list {
    struct mp_node **nodes;
    int n, capacity;
};

static void list_add(struct mp_runtime *rt, struct node_list *list, struct mp_node *n)
{
    if (list->n == list->capacity) {
        const int wanted = list->capacity ? list->capacity * 2 : 1024;
        struct mp_node **bigger = mp_runtime_alloc(rt, (size_t)wanted * sizeof(struct mp_node *));
        if (list->n)
            memcpy(bigger, list->nodes, (size_t)list->n * sizeof(struct mp_node *));
        list->nodes = bigger;
        list->capacity = wanted;
    }
    list->nodes[list->n++] = n;
}

static void open_task(struct mp_runtime *rt, struct mp_node *n, uint32_t engine)
{
    struct mp_task *task = mp_pool_take(rt, &rt->tasks);
    task->engine = engine;
    task->outer = n->task;
    n->task = task;
}

static void close_task(struct mp_runtime *rt, struct mp_node *n)
{
    struct mp_task *task = n->task;
    n->task = task->outer;
    mp_pool_give(&rt->tasks, task);
}

static void count_dependencies(struct mp_runtime *rt, struct node_list *visited, uint32_t engine)
{
    for (int at = 0; at < visited->n; at++) {
        struct mp_node *n = visited->nodes[at];
        for (int i = 0; i < n->n_inputs; i++) {
            struct mp_node *next = n->inputs[i].node;
            if (!next)
                continue;
            if (!next->task || next->task->engine != engine) {
                open_task(rt, next, engine);
                list_add(rt, visited, next);
            }
            next->task->dependencies++;
        }
    }
}

/* v joins what has arrived for that output already. Takes over v. */
static void buffer_gradient(struct mp_runtime *rt, struct mp_tensor **slot, struct mp_tensor *v)
{
    struct mp_tensor *old = *slot;
    if (!old) {
        *slot = v;
        return;
    }
    if (old->refs == 1 && old->storage->refs == 1 && mp_is_dense(old)) {
        mp_record(rt, "add_", MP_TENSORS(old, v), MP_TENSORS(old), MP_NO_ATTRIBUTES);
        mp_tensor_unref(rt, v); /* added in place */
        return;
    }
    *slot = mp_take(rt, mp_pointwise(rt, 2, (struct mp_tensor *[]){old, v}));
    mp_record(rt, "add", MP_TENSORS(old, v), MP_TENSORS(*slot), MP_NO_ATTRIBUTES);
    mp_tensor_unref(rt, old);
    mp_tensor_unref(rt, v);
}

static bool same_stride(const struct mp_tensor *a, const struct mp_tensor *b)
{
    for (int i = 0; i < a->shape.n; i++)
        if (a->shape.d[i] != 1 && a->stride[i] != b->stride[i])
            return false;
    return true;
}

/*
 * .grad is empty and the gradient is ours alone, in the parameter's layout: it becomes .grad. Otherwise a copy, or an addition.
 * What came in lives on while hooks run.
 */
static void accumulate_grad(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor *g)
{
    struct mp_tensor *variable = n->variable;
    if (!g)
        return;
    if (!variable->grad) {
        if (g->refs == 1 && (same_stride(g, variable) || !mp_is_dense(variable))) {
            variable->grad = mp_take(rt, mp_alias(rt, g, g->shape, g->stride, NULL));
        } else {
            variable->grad = mp_take(rt, mp_empty_strided(rt, variable->shape, variable->stride, g->dtype));
            mp_record_copy(rt, "clone", g, variable->grad);
        }
        mp_tag(rt, variable->grad->storage, MP_CATEGORY_GRADIENT);
    } else {
        mp_record(rt, "add_", MP_TENSORS(variable->grad, g), MP_TENSORS(variable->grad), MP_NO_ATTRIBUTES);
    }
    const bool early = rt->hooks && rt->hooks->hooks_tensors && g->storage == variable->grad->storage;
    if (early)
        mp_tensor_unref(rt, g);
    if (rt->hooks && rt->hooks->accumulated)
        rt->hooks->accumulated(rt, rt->hooks->context, variable);
    if (!early)
        mp_tensor_unref(rt, g);
}

void mp_record_node(struct mp_runtime *rt, const struct mp_node *n, struct mp_tensor **grads, struct mp_tensor **out, int n_attributes,
                    const struct mp_attribute *attributes)
{
    struct mp_tensor *inputs[MP_MAX_OUTPUTS + MP_MAX_SAVED];
    memcpy(inputs, grads, n->n_outputs * sizeof *grads);
    memcpy(inputs + n->n_outputs, n->held, n->n_saved * sizeof *n->held);
    mp_record(rt, n->type->name, n->n_outputs + n->n_saved, inputs, n->n_inputs, out, n_attributes, attributes);
}

static void unpack_saved(struct mp_runtime *rt, struct mp_node *n)
{
    for (int i = 0; i < n->n_saved; i++) {
        struct mp_saved *saved = &n->saved[i];
        n->held[i] = saved->recompute ? mp_recompute_unpack(rt, saved)
                     : saved->host    ? mp_host_unpack(rt, saved->host)
                                      : mp_tensor_ref(saved->tensor);
    }
}

/* Broadcast gradients are summed, then cast, each replacing the one before. */
static void validate_outputs(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **out)
{
    for (int i = 0; i < n->n_inputs; i++) {
        const struct mp_edge *e = &n->inputs[i];
        if (!e->node) {
            mp_tensor_unref(rt, out[i]);
            out[i] = NULL;
        }
        if (!out[i])
            continue;
        const struct mp_meta *meta = mp_node_output(e->node, e->output_nr);
        struct mp_tensor *sum = mp_sum_to(rt, out[i], &meta->shape);
        if (sum != out[i]) {
            mp_tensor_unref(rt, out[i]);
            out[i] = mp_take(rt, sum);
        }
        if (out[i]->dtype != meta->dtype) {
            struct mp_tensor *cast = mp_take(rt, mp_empty_like(rt, out[i], meta->dtype));
            mp_record_copy(rt, "to", out[i], cast);
            mp_tensor_unref(rt, out[i]);
            out[i] = cast;
        }
    }
}

/* What the operator worked on: saved tensors, and leaves that it has gradients for. Views save nothing and work on nothing. */
static int tensors_of(const struct mp_runtime *rt, const struct mp_node *n, struct mp_tensor **used)
{
    int n_used = 0;
    if (!mp_watches_modules(rt) || n->in_module || n->n_saved == 0)
        return 0;
    for (int i = 0; i < n->n_saved; i++)
        if (n->held[i])
            used[n_used++] = n->held[i];
    for (int i = 0; i < n->n_inputs; i++)
        if (n->inputs[i].node && n->inputs[i].node->variable)
            used[n_used++] = n->inputs[i].node->variable;
    return n_used;
}

/* out gets owned gradients, one per input. */
static void evaluate(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **grads, struct mp_tensor **out)
{
    struct mp_tensor *used[MP_MAX_SAVED + MP_MAX_INPUTS];
    unpack_saved(rt, n);
    const int n_temporaries = rt->n_temporaries, n_used = tensors_of(rt, n, used);
    mp_use_begin(rt, n_used, used, true);
    n->type->backward(rt, n, grads, out);
    for (int i = 0; i < n->n_inputs; i++)
        out[i] = mp_take(rt, out[i]);
    mp_discard_to(rt, n_temporaries);
    mp_use_end(rt, n_used, used, true);
    for (int i = n->n_saved - 1; i >= 0; i--) {
        mp_tensor_unref(rt, n->held[i]);
        n->held[i] = NULL;
    }
    validate_outputs(rt, n, out);
    for (int i = 0; i < n->n_outputs; i++)
        mp_tensor_unref(rt, grads[i]);
    for (int i = 0; i < n->n_saved; i++)
        drop_saved(rt, &n->saved[i]);
}

static void route(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **out, struct ready_queue *ready)
{
    for (int i = 0; i < n->n_inputs; i++) {
        const struct mp_edge *e = &n->inputs[i];
        if (!e->node)
            continue;
        if (out[i])
            buffer_gradient(rt, &e->node->task->grads[e->output_nr], out[i]);
        if (--e->node->task->dependencies == 0)
            ready_push(rt, ready, e->node);
    }
}

static void run_node(struct mp_runtime *rt, struct mp_node *n, struct ready_queue *ready)
{
    struct mp_tensor *grads[MP_MAX_OUTPUTS], *out[MP_MAX_INPUTS] = {NULL};
    memcpy(grads, n->task->grads, sizeof grads);
    close_task(rt, n);
    rt->layer = n->layer;
    rt->op = n->type->name;
    if (n->variable) {
        accumulate_grad(rt, n, grads[0]);
        return;
    }
    if (n->before)
        n->before(rt, n->before_context);
    evaluate(rt, n, grads, out);
    rt->op = n->type->name;
    route(rt, n, out, ready);
}

void mp_engine_run(struct mp_runtime *rt, int n, struct mp_tensor *const *roots, struct mp_tensor *const *grads)
{
    const enum mp_thread thread = rt->thread;
    const bool grad_enabled = rt->grad_enabled;
    const int layer = rt->layer;
    const char *op = rt->op;
    rt->thread = MP_THREAD_BACKWARD;
    mp_driver_event(rt, MP_DRIVER_BACKWARD_THREAD, 0);
    rt->grad_enabled = false;

    /* A node of our own stands before the roots, so that one root is as good as many. */
    struct mp_node *root = mp_pool_take(rt, &rt->nodes);
    root->refs = 1;
    root->type = &graph_root_type;
    root->n_inputs = (uint8_t)n;
    struct mp_tensor *out[MP_MAX_INPUTS] = {NULL};
    for (int i = 0; i < n; i++) {
        root->inputs[i] = gradient_edge(rt, roots[i]);
        out[i] = mp_tensor_ref(grads[i]);
    }
    struct node_list visited = {NULL, 0, 0};
    struct ready_queue ready = {NULL, 0, 0};
    list_add(rt, &visited, root);
    count_dependencies(rt, &visited, ++rt->n_engines);
    route(rt, root, out, &ready);
    mp_node_unref(rt, root);
    while (ready.n > 0)
        run_node(rt, ready_pop(&ready), &ready);
    if (thread == MP_THREAD_MAIN && rt->hooks && rt->hooks->backward_done)
        rt->hooks->backward_done(rt, rt->hooks->context);

    rt->thread = thread;
    rt->grad_enabled = grad_enabled;
    rt->layer = layer;
    rt->op = op;
}

void mp_backward(struct mp_runtime *rt, struct mp_tensor *loss)
{
    struct mp_tensor *grad = mp_take(rt, mp_empty_like(rt, loss, loss->dtype));
    mp_record_fill(rt, grad, 1);
    mp_engine_run(rt, 1, (struct mp_tensor *[]){loss}, (struct mp_tensor *[]){grad});
    mp_tensor_unref(rt, grad);
}
