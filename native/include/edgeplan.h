/* libedgeplan: runs plan folders of edgeplan, without Python.
 *
 * A session is one opened plan. It is used by one thread at a time: a call that meets another one is refused with
 * EP_BUSY. It belongs to the process that opened it: after a fork it is refused in the child. No call ends the
 * process or sets a signal handler; of the environment GOMP_SPINCOUNT alone is set while oneDNN is loaded, where
 * nobody has chosen. While a cold start's session is open, the thread that opened it stays on the plan's processors.
 */
#ifndef EDGEPLAN_H
#define EDGEPLAN_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EP_ABI_VERSION 2
#define EP_MOST_DIMS 12

typedef struct ep_session ep_session;

/* What became of a call: the exit codes of edgeplan's errors. */
typedef enum ep_status {
  EP_OK = 0,
  EP_ERROR = 1,       /* what nobody expected */
  EP_MODEL = 2,       /* weights that cannot be read, were damaged or changed; inputs that pick what is not there */
  EP_DEVICE = 3,      /* no oneDNN, too few processors, a session that was closed or forked, a kernel that failed */
  EP_FORMAT = 5,      /* no plan, a damaged one, or one for another machine, library or version */
  EP_BUSY = 8,        /* the session is in use */
  EP_INPUT = 11,      /* inputs or outputs that do not fit */
  EP_INFEASIBLE = 13, /* a budget that is too small */
} ep_status;

typedef struct ep_options {
  size_t size;           /* sizeof(ep_options) of the caller: further fields may follow */
  const char* library;   /* oneDNN's file; NULL: EDGEPLAN_ONEDNN, the plan's, or the system's */
  const int* processors; /* of a cold start: those that execute first, then those that only prepare; NULL: any */
  size_t processor_count;
  int continuous;        /* of a cold start: prepare kernels of later runs between runs; -1: as it was planned */
  int fixed;             /* of a cold start: no core takes preparations of another one */
  uint64_t budget;       /* of a plan of memory, bytes over idle to open within; 0: as it was planned */
} ep_options;

/* An input or output: row-major. The name lives as long as the session. */
typedef struct ep_tensor_info {
  const char* name;
  const char* dtype; /* "float32", "int32", "int64", "int8", "uint8", "bool" */
  int rank;
  int64_t dims[EP_MOST_DIMS];
  size_t bytes;
  int64_t below; /* of an input of integers: they stay below */
} ep_tensor_info;

typedef struct ep_buffer {
  void* data;
  size_t bytes;
} ep_buffer;

/* What was done when: nanoseconds of CLOCK_MONOTONIC. */
typedef struct ep_span {
  int32_t core;  /* 0: the one that executes; 1 and so on: those that prepare */
  int32_t step;
  int32_t stage; /* 0 read, 1 create, 2 transform, 3 execute */
  int32_t reserved;
  int64_t begin_ns, end_ns;
} ep_span;

int ep_abi_version(void);

/* Open a plan folder. On failure *session is NULL, and ep_last_error(NULL) says why to this thread. */
ep_status ep_open(const char* folder, const ep_options* options, ep_session** session);

int ep_input_count(const ep_session* session);
int ep_output_count(const ep_session* session);
ep_status ep_input(const ep_session* session, int number, ep_tensor_info* info);
ep_status ep_output(const ep_session* session, int number, ep_tensor_info* info);

/* One inference. Inputs are copied in, outputs out, in the order of ep_input and ep_output. An output whose data is
 * NULL is not copied: it is pointed to where it lies, until the next call. */
ep_status ep_run(ep_session* session, const ep_buffer* inputs, int input_count, ep_buffer* outputs, int output_count);

/* Of a plan of memory: run by the fastest stored schedule that a budget (bytes over idle) is enough for. */
ep_status ep_set_budget(ep_session* session, uint64_t bytes, double* predicted_ms);

/* Prepare now what would else be a part of later runs: kernels of later runs, weights that memory has room for. */
ep_status ep_prepare_later(ep_session* session);

/* The timeline of the first run of a cold start, or of the last run else. `count` is the room, then how many there are. */
ep_status ep_trace(const ep_session* session, ep_span* spans, size_t* count);

/* A number that the session knows, by its name: docs/runtime.md lists them; NaN where it knows none. */
double ep_fact(const ep_session* session, const char* name);

/* A text that the session knows: "model", "layout" (of a cold start); NULL where it knows none. As long as the session. */
const char* ep_text(const ep_session* session, const char* name);

/* The last error in three lines: what, "  where: ...", "  next:  ...". Of NULL: of this thread's last ep_open. */
const char* ep_last_error(const ep_session* session);

void ep_close(ep_session* session);

#ifdef __cplusplus
}
#endif
#endif
