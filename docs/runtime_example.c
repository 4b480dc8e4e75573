/* A plan folder, run from C: cc runtime_example.c -Inative/include -Lworkflow/edgeplan -ledgeplan -o example
 * It sets all inputs to 1, and prints the first values of each output of two inferences. */
#include <edgeplan.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 16, SHOWN = 5 };

static int failed(const ep_session* session) {
  fprintf(stderr, "error: %s\n", ep_last_error(session)); /* what, where, and what to do next */
  return 1;
}

int main(int count, char** arguments) {
  ep_session* session;
  ep_tensor_info info;
  ep_buffer inputs[MOST], outputs[MOST];
  ep_options options = {.size = sizeof options, .continuous = -1};
  if (count != 2) return fprintf(stderr, "usage: %s PLAN-FOLDER\n", arguments[0]), 2;
  if (ep_open(arguments[1], &options, &session) != EP_OK) return failed(NULL);
  const int taken = ep_input_count(session), made = ep_output_count(session);
  if (taken > MOST || made > MOST) return fprintf(stderr, "error: more than %d inputs or outputs\n", MOST), 1;
  for (int k = 0; k < taken; ++k) {
    if (ep_input(session, k, &info) != EP_OK) return failed(session);
    inputs[k] = (ep_buffer){calloc(1, info.bytes), info.bytes};
    float* values = inputs[k].data;
    for (size_t i = 0; strcmp(info.dtype, "float32") == 0 && i < info.bytes / sizeof *values; ++i) values[i] = 1;
  }
  for (int run = 0; run < 2; ++run) {
    memset(outputs, 0, sizeof outputs); /* no memory of ours: they stay where they are until the next call */
    if (ep_run(session, inputs, taken, outputs, made) != EP_OK) return failed(session);
    for (int k = 0; k < made; ++k) {
      if (ep_output(session, k, &info) != EP_OK) return failed(session);
      const float* values = outputs[k].data;
      printf("%s %s", info.name, info.dtype);
      for (size_t i = 0; strcmp(info.dtype, "float32") == 0 && i < SHOWN && i < info.bytes / sizeof *values; ++i)
        printf(" %g", values[i]);
      printf("\n");
    }
  }
  printf("threads %g, steps %g\n", ep_fact(session, "threads"), ep_fact(session, "steps"));
  ep_close(session);
  for (int k = 0; k < taken; ++k) free(inputs[k].data);
  return 0;
}
