/* A library with oneDNN's names that computes next to nothing: sessions run on it in microseconds, on any processor.
 *
 * Its objects are counted, so that leaks show, and know their kind, so that a wrong or a freed one is a misuse. A
 * primitive makes each value of its output half the sum of those of its inputs, plus 1; a reorder copies. It touches
 * all that it is told of. Faults and delays of functions come by `fake_rule`.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS, OUT_OF_MEMORY, INVALID, UNIMPLEMENTED, NO_MORE };
enum { ENGINE = 1, STREAM, DESCRIPTOR, ATTRIBUTES, POST_OPS, DESCRIBED, PRIMITIVE, MEMORY, KINDS };
enum { SRC = 1, SRC_1 = 2, DST = 17, WEIGHTS = 33, BIAS = 41, SCRATCHPAD = 80, MULTIPLE = 1024 };
enum { MOST_ARGUMENTS = 16, MOST_RULES = 16, MOST_EVENTS = 1 << 14 };

typedef struct Object {
  int kind, rank, type, count;
  int64_t dims[12], bytes;
  char* data;
  struct Object* described;
  int number, implementation, copies;
  int arguments[MOST_ARGUMENTS];
  struct Object* descriptors[MOST_ARGUMENTS];
} Object;

typedef struct {
  char function[64];
  int each, left, status, delay_us;
} Rule;

/* What was called: the function, the thread, its number of threads, and a number: of executions the primitive's. */
typedef struct {
  char function[64];
  int64_t thread, threads, number;
} Event;

static int live[KINDS], misuses, made_primitives, rules_made;
static Rule rules[MOST_RULES];
static Event events[MOST_EVENTS];
static int events_noted;
static __thread int threads = 1;
static struct {
  int major, minor, patch;
  const char* hash;
  unsigned cpu_runtime, gpu_runtime;
} version = {3, 99, 0, "fake", 2, 0};
static int isa = 0x7;

/* For tests. */
int fake_live(int kind) { return __atomic_load_n(&live[kind], __ATOMIC_ACQUIRE); }
int fake_misuses(void) { return misuses; }
int fake_events(void) { return events_noted < MOST_EVENTS ? events_noted : MOST_EVENTS; }
const Event* fake_event(int number) { return &events[number]; }
/* From now on the nth call of a function (0: each) takes so much longer, and fails where the status is not 0. */
void fake_rule(const char* function, int nth, int status, int delay_us) {
  Rule* rule = &rules[rules_made++];
  strncpy(rule->function, function, sizeof rule->function - 1);
  rule->each = nth == 0, rule->left = nth, rule->status = status, rule->delay_us = delay_us;
}
void fake_reset(void) {
  memset(rules, 0, sizeof rules);
  rules_made = events_noted = misuses = made_primitives = 0;
}

static int begin(const char* function, int64_t number) {
  const int at = __atomic_fetch_add(&events_noted, 1, __ATOMIC_ACQ_REL);
  if (at < MOST_EVENTS) {
    Event* event = &events[at];
    strncpy(event->function, function, sizeof event->function - 1);
    event->thread = gettid(), event->threads = threads, event->number = number;
  }
  for (int k = 0; k < rules_made; ++k) {
    if (strcmp(rules[k].function, function) != 0) continue;
    if (!rules[k].each && __atomic_sub_fetch(&rules[k].left, 1, __ATOMIC_ACQ_REL) != 0) continue;
    if (rules[k].delay_us > 0) usleep(rules[k].delay_us);
    if (rules[k].status != 0) return rules[k].status;
  }
  return SUCCESS;
}

static int is(const Object* object, int kind) {
  if (object != NULL && object->kind == kind) return 1;
  __atomic_add_fetch(&misuses, 1, __ATOMIC_ACQ_REL);
  return 0;
}
static Object* new_object(int kind) {
  Object* made = calloc(1, sizeof *made);
  made->kind = kind;
  __atomic_add_fetch(&live[kind], 1, __ATOMIC_ACQ_REL);
  return made;
}
static int destroy(Object* object, int kind) {
  if (!is(object, kind)) return INVALID;
  __atomic_sub_fetch(&live[kind], 1, __ATOMIC_ACQ_REL);
  object->kind = 0; /* and its memory stays, so that using it shows */
  return SUCCESS;
}
#define DESTROYS(name, kind) \
  int dnnl_##name##_destroy(Object* object) { return destroy(object, kind); }
DESTROYS(engine, ENGINE)
DESTROYS(stream, STREAM)
DESTROYS(memory_desc, DESCRIPTOR)
DESTROYS(primitive_attr, ATTRIBUTES)
DESTROYS(post_ops, POST_OPS)
DESTROYS(primitive_desc, DESCRIBED)
DESTROYS(primitive, PRIMITIVE)
DESTROYS(memory, MEMORY)

const void* dnnl_version(void) { return &version; }
int dnnl_get_effective_cpu_isa(void) { return isa; }
void omp_set_num_threads(int count) { threads = count; }
int dnnl_set_primitive_cache_capacity(int capacity) { return capacity < 0 ? INVALID : SUCCESS; }
int dnnl_get_primitive_cache_capacity(int* capacity) { return *capacity = 1024, SUCCESS; }

#define BEGIN(number) \
  const int status = begin(__func__, number); \
  if (status != SUCCESS) return status

static int simple(Object** made, int kind) { return *made = new_object(kind), SUCCESS; }
int dnnl_engine_create(Object** made, int kind, size_t index) { return (void)kind, (void)index, simple(made, ENGINE); }
int dnnl_stream_create(Object** made, Object* engine, unsigned flags) {
  BEGIN(flags);
  return is(engine, ENGINE) ? simple(made, STREAM) : INVALID;
}
int dnnl_stream_wait(Object* stream) { return is(stream, STREAM) ? SUCCESS : INVALID; }

/* Descriptors: those of a part reach as far as what it is a part of. */
int dnnl_memory_desc_create_with_tag(Object** made, int rank, const int64_t* dims, int type, int tag) {
  static const int SIZES[] = {0, 2, 2, 4, 4, 1, 1, 8, 1};
  BEGIN(tag);
  if (rank < 1 || rank > 12 || type < 1 || type > 8) return INVALID;
  Object found = {.rank = rank, .type = type, .bytes = SIZES[type]};
  for (int axis = 0; axis < rank; ++axis)
    if (dims[axis] < 0 || __builtin_mul_overflow(found.bytes, found.dims[axis] = dims[axis], &found.bytes)) return INVALID;
  *made = new_object(DESCRIPTOR);
  found.kind = DESCRIPTOR;
  **made = found;
  return SUCCESS;
}
int dnnl_memory_desc_create_with_strides(Object** made, int rank, const int64_t* dims, int type, const int64_t* strides) {
  (void)strides;
  return dnnl_memory_desc_create_with_tag(made, rank, dims, type, 0);
}
static int derived(Object** made, Object* of) {
  if (!is(of, DESCRIPTOR)) return INVALID;
  *made = new_object(DESCRIPTOR);
  **made = *of;
  return SUCCESS;
}
int dnnl_memory_desc_create_submemory(Object** made, Object* of, const int64_t* dims, const int64_t* offsets) {
  BEGIN(dims[0] + offsets[0]);
  return derived(made, of);
}
int dnnl_memory_desc_permute_axes(Object** made, Object* of, const int* axes) {
  BEGIN(axes[0]);
  return derived(made, of);
}
int dnnl_memory_desc_query(const Object* descriptor, int what, void* found) {
  return (void)descriptor, (void)what, (void)found, UNIMPLEMENTED;
}
size_t dnnl_memory_desc_get_size(const Object* descriptor) { return descriptor == NULL ? 0 : (size_t)descriptor->bytes; }

int dnnl_primitive_attr_create(Object** made) {
  BEGIN(0);
  return simple(made, ATTRIBUTES);
}
int dnnl_primitive_attr_set_scratchpad_mode(Object* to, int mode) { return (void)mode, is(to, ATTRIBUTES) ? SUCCESS : INVALID; }
int dnnl_primitive_attr_set_post_ops(Object* to, Object* posts) {
  return is(to, ATTRIBUTES) && is(posts, POST_OPS) ? SUCCESS : INVALID;
}
int dnnl_post_ops_create(Object** made) {
  BEGIN(0);
  return simple(made, POST_OPS);
}
int dnnl_post_ops_append_eltwise(Object* to, int kind, float alpha, float beta) {
  return (void)kind, (void)alpha, (void)beta, is(to, POST_OPS) ? SUCCESS : INVALID;
}

/* What describes a primitive: pairs of an argument's number and its descriptor. */
static int describe(Object** made, Object* engine, Object* attributes, int copies, int count, ...) {
  Object found = {.kind = DESCRIBED, .count = count, .copies = copies};
  va_list rest;
  if (!is(engine, ENGINE) || !is(attributes, ATTRIBUTES)) return INVALID;
  va_start(rest, count);
  for (int k = 0; k < count; ++k) {
    found.arguments[k] = va_arg(rest, int);
    found.descriptors[k] = va_arg(rest, Object*);
  }
  va_end(rest);
  for (int k = 0; k < count; ++k) {
    if (!is(found.descriptors[k], DESCRIPTOR)) return INVALID;
    Object* own = malloc(sizeof *own);
    *own = *found.descriptors[k];
    found.descriptors[k] = own;
  }
  *made = new_object(DESCRIBED);
  **made = found;
  return SUCCESS;
}
int dnnl_binary_primitive_desc_create(Object** made, Object* engine, int kind, Object* a, Object* b, Object* y, Object* with) {
  BEGIN(kind);
  return describe(made, engine, with, 0, 3, SRC, a, SRC_1, b, DST, y);
}
int dnnl_eltwise_forward_primitive_desc_create(Object** made, Object* engine, int prop, int kind, Object* x, Object* y, float alpha,
                                               float beta, Object* with) {
  BEGIN(prop + kind + (int)(alpha + beta));
  return describe(made, engine, with, 0, 2, SRC, x, DST, y);
}
int dnnl_reorder_primitive_desc_create(Object** made, Object* x, Object* engine, Object* y, Object* other, Object* with) {
  BEGIN(0);
  return is(other, ENGINE) ? describe(made, engine, with, 1, 2, SRC, x, DST, y) : INVALID;
}
int dnnl_concat_primitive_desc_create(Object** made, Object* engine, Object* y, int count, int axis, Object** x, Object* with) {
  BEGIN(axis);
  if (count != 2) return UNIMPLEMENTED;
  return describe(made, engine, with, 0, 3, MULTIPLE, x[0], MULTIPLE + 1, x[1], DST, y);
}

/* Each primitive is offered in two ways. */
int dnnl_primitive_desc_query(Object* described, int what, int index, const char** name) {
  if (!is(described, DESCRIBED) || what != 8 || index != 0) return INVALID;
  *name = described->implementation == 0 ? "fake:first" : "fake:second";
  return SUCCESS;
}
int dnnl_primitive_desc_next_impl(Object* described) {
  if (!is(described, DESCRIBED)) return INVALID;
  return described->implementation++ == 0 ? SUCCESS : NO_MORE;
}
static Object* descriptor_of(const Object* described, int argument) {
  for (int k = 0; k < described->count; ++k)
    if (described->arguments[k] == argument) return described->descriptors[k];
  return NULL;
}
Object* dnnl_primitive_desc_query_md(Object* described, int what, int index) {
  static Object nothing = {.kind = DESCRIPTOR};
  Object* found = NULL;
  if (!is(described, DESCRIBED)) return NULL;
  if (what == 255) found = descriptor_of(described, index);
  if (what == 129) found = descriptor_of(described, index == 0 ? SRC : SRC_1);
  return found != NULL ? found : &nothing;
}
int dnnl_primitive_create(Object** made, Object* described) {
  const int number = __atomic_fetch_add(&made_primitives, 1, __ATOMIC_ACQ_REL);
  BEGIN(number);
  if (!is(described, DESCRIBED)) return INVALID;
  *made = new_object(PRIMITIVE);
  (*made)->described = malloc(sizeof(Object));
  *(*made)->described = *described;
  (*made)->number = number;
  return SUCCESS;
}

int dnnl_memory_create(Object** made, Object* descriptor, Object* engine, void* data) {
  BEGIN((int64_t)data);
  if (!is(descriptor, DESCRIPTOR) || !is(engine, ENGINE)) return INVALID;
  *made = new_object(MEMORY);
  (*made)->bytes = descriptor->bytes, (*made)->data = data;
  return SUCCESS;
}
int dnnl_memory_set_data_handle(Object* memory, void* data) {
  if (!is(memory, MEMORY)) return INVALID;
  memory->data = data;
  return SUCCESS;
}

typedef struct {
  int argument;
  Object* memory;
} Argument;

static void compute(const Object* described, const float* sum, int64_t count, Argument out) {
  float* y = (float*)out.memory->data;
  for (int64_t k = 0; k < count; ++k) y[k] = described->copies ? sum[k] : 0.5f * sum[k] + 1;
}
int dnnl_primitive_execute(Object* primitive, Object* stream, int count, const Argument* given) {
  if (!is(primitive, PRIMITIVE) || !is(stream, STREAM)) return INVALID;
  BEGIN(primitive->number);
  const Object* described = primitive->described;
  if (count != described->count) return INVALID;
  const int64_t values = descriptor_of(described, DST)->bytes / 4;
  float* sum = calloc(values > 0 ? values : 1, sizeof *sum);
  for (int k = 0; k < count; ++k) {
    const Object* wanted = descriptor_of(described, given[k].argument);
    if (wanted == NULL || !is(given[k].memory, MEMORY)) return free(sum), INVALID;
    const float* x = (const float*)given[k].memory->data;
    const int64_t read = given[k].argument == DST ? 0 : wanted->bytes / 4;
    for (int64_t i = 0; i < read; ++i)
      if (values > 0) sum[i % values] += x[i];
  }
  for (int k = 0; k < count; ++k)
    if (given[k].argument == DST) compute(described, sum, values, given[k]);
  return free(sum), SUCCESS;
}
