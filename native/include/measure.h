/* Entry points for measuring, apart from what applications use: they change with the library (native/src/measure).
 *
 * A bench prepares and executes single records of a cold start's program, stage by stage, with the code of a session.
 * Records are numbered as in the program (RECORD_STARTS). One thread at a time.
 */
#ifndef EDGEPLAN_MEASURE_H
#define EDGEPLAN_MEASURE_H
#include "edgeplan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* This machine's text, which programs hold; it lives until the next call in this thread. */
const char* ep_machine(void);

typedef struct ep_bench ep_bench;

/* A program as bytes, which the bench copies. `memory`: of another bench to share activations and weights with, or NULL;
 * `cache`: the file that cached weights come from, or NULL. Errors: ep_last_error(NULL). */
ep_status ep_measure_open(const void* program, size_t bytes, const char* library, const char* cache, ep_bench* memory,
                          ep_bench** bench);
void ep_measure_close(ep_bench* bench);
/* Activations, then weights; all of it has been touched. */
void* ep_measure_memory(ep_bench* bench, size_t* bytes);
/* Objects of oneDNN are made anew from here on, the cache is mapped anew. What was prepared before can still be executed where
 * it is `kept`; else it is freed, with all objects. */
ep_status ep_measure_renew(ep_bench* bench, int kept);
/* Prepare a record: its weights go to `place` behind the activations (-1: where it says). `prepared` is its number for
 * `execute`. Spans of its stages: `count` is the room, then how many there are. */
ep_status ep_measure_prepare(ep_bench* bench, int64_t record, int64_t place, int64_t* prepared, ep_span* spans, size_t* count);
/* Prepare the program's own steps, one after the other in the calling thread, as a lane does; nanoseconds of all stages. */
ep_status ep_measure_prepare_all(ep_bench* bench, int64_t* nanoseconds);
/* Fetch the weights of a record from the cache, at a segment of it: copied (`mapped` 0) or mapped; nanoseconds. */
ep_status ep_measure_fetch(ep_bench* bench, int64_t record, int mapped, int64_t segment, int64_t* nanoseconds);
/* Execute what was prepared, in order, on so many threads. */
ep_status ep_measure_execute(ep_bench* bench, const int64_t* prepared, size_t count, int threads);

/* What a process is before it opens a plan, from which budgets count: oneDNN is loaded as the plan's session will, its
 * threads have run, and pages of it are let go that the session would let go. `alone`: so are pages of all files that were
 * read and not used, as they always are under a narrow limit of memory. `input_bytes` (or NULL): of the model's inputs,
 * each rounded up to 64, which the caller may want to hold already. Errors: ep_last_error(NULL). */
ep_status ep_measure_ready(const char* folder, const char* library, int alone, size_t* input_bytes);

/* Of sessions of memory plans, opened by `ep_measure_stream`. */
typedef struct ep_stream_options {
  const char* library;
  const int* readers; /* processors of the reading threads; none: any */
  size_t reader_count;
  int debug;      /* memory that becomes free is filled with NaN */
  int gives_back; /* memory that becomes free goes back to the system */
  int records;    /* pages of the library that are needed are written down */
  int mapped;     /* weights are used where weights.bin is mapped: nothing is read by threads */
} ep_stream_options;

/* A schedule: offsets in the arena of each buffer, of each step's weights (-1: none), and what each load waits for. */
typedef struct ep_schedule {
  int64_t arena_bytes;
  int64_t back_to_back;
  const int64_t *buffers, *weights, *after, *again;
} ep_schedule;

/* `schedule` NULL: the plan's own; `budget` not 0: the stored one for so many bytes over idle. */
ep_status ep_measure_stream(const char* folder, const ep_stream_options* options, const ep_schedule* schedule, uint64_t budget,
                            ep_session** session);
ep_status ep_measure_apply(ep_session* session, const ep_schedule* schedule);
ep_status ep_measure_fill(ep_session* session);                       /* load what memory has room for */
ep_status ep_measure_expect(ep_session* session, int64_t inferences); /* so many follow: weights may be loaded ahead */
ep_status ep_measure_touched(ep_session* session);                    /* wait until the whole arena is in memory */
ep_status ep_measure_settle(ep_session* session);
ep_status ep_measure_slow(ep_session* session, const int64_t* nanoseconds, size_t steps); /* each step is prolonged */
ep_status ep_measure_stream_ms(ep_session* session, double* ms);      /* to read all weights, nothing else running */
ep_status ep_measure_read_ms(ep_session* session, double* ms);        /* of a page that is read alone */
/* Pages of the library that making kernels (`running` 0) or executing them needed: first page and number, pair by pair. */
ep_status ep_measure_pages(ep_session* session, int running, int64_t* runs, size_t* count);

#ifdef __cplusplus
}
#endif
#endif
