/* ONNX Runtime as a program in C meets it: load its library, open a model, run it once, write the outputs.
 *
 *   ort_start LIBRARY MODEL OUTPUTS OPTIMISE THREADS [ENTRY...] -- NAME FILE DIMS... [NAME FILE DIMS...] -- OUTPUT...
 *
 * OPTIMISE 0: the model as it is (it was optimised before), 99: all; each ENTRY of the session is set to "1". Inputs are
 * float32. OrtApi is a table of functions whose order never changes (onnxruntime_c_api.h): numbers stand for its header.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ERROR_MESSAGE = 2, CREATE_ENV = 3, CREATE_SESSION = 7, RUN = 9, CREATE_OPTIONS = 10, SET_OPTIMISATION = 23,
       SET_THREADS = 24, CREATE_TENSOR = 49, TENSOR_DATA = 51, ELEMENT_COUNT = 64, SHAPE_OF = 65, CPU_MEMORY = 69, ADD_ENTRY = 130,
       API_VERSION = 13, FLOAT = 1, MOST = 16, ERRORS_ONLY = 3 };
typedef void* (*Function)();
static Function* api;

static void check(void* status) {
  if (status == NULL) return;
  fprintf(stderr, "error: %s\n", (const char*)api[ERROR_MESSAGE](status));
  exit(1);
}

static float* values_of(const char* path, size_t count) {
  float* values = malloc(count * sizeof *values);
  FILE* file = fopen(path, "rb");
  if (file == NULL || values == NULL || fread(values, sizeof *values, count, file) != count) exit(2);
  fclose(file);
  return values;
}

int main(int count, char** words) {
  if (count < 8) return 2;
  void* library = dlopen(words[1], RTLD_NOW);
  if (library == NULL) return fprintf(stderr, "error: %s\n", dlerror()), 1;
  struct Base { Function* (*api)(uint32_t); const char* (*version)(void); };
  struct Base* (*base)(void) = (struct Base* (*)(void))dlsym(library, "OrtGetApiBase");
  api = base()->api(API_VERSION);
  void *environment, *options, *session, *memory, *inputs[MOST], *outputs[MOST] = {0};
  const char *input_names[MOST], *output_names[MOST];
  size_t input_count = 0, output_count = 0;
  check(api[CREATE_ENV](ERRORS_ONLY, "start", &environment));
  check(api[CREATE_OPTIONS](&options));
  check(api[SET_OPTIMISATION](options, atoi(words[4])));
  check(api[SET_THREADS](options, atoi(words[5])));
  int at = 6;
  for (; strcmp(words[at], "--") != 0; ++at) check(api[ADD_ENTRY](options, words[at], "1"));
  check(api[CREATE_SESSION](environment, words[2], options, &session));
  check(api[CPU_MEMORY](1, 0, &memory));
  for (++at; strcmp(words[at], "--") != 0;) {
    int64_t dims[MOST];
    size_t rank = 0, elements = 1;
    input_names[input_count] = words[at++];
    const char* path = words[at++];
    for (; strcmp(words[at], "--") != 0 && words[at][0] >= '0' && words[at][0] <= '9'; ++at)
      elements *= (size_t)(dims[rank++] = atoll(words[at]));
    float* values = values_of(path, elements);
    check(api[CREATE_TENSOR](memory, values, elements * sizeof *values, dims, rank, FLOAT, &inputs[input_count++]));
  }
  for (++at; at < count; ++at) output_names[output_count++] = words[at];
  check(api[RUN](session, NULL, input_names, (const void* const*)inputs, input_count, output_names, output_count, outputs));
  FILE* file = fopen(words[3], "wb");
  for (size_t k = 0; k < output_count; ++k) {
    void *shape, *values;
    size_t elements;
    check(api[SHAPE_OF](outputs[k], &shape));
    check(api[ELEMENT_COUNT](shape, &elements));
    check(api[TENSOR_DATA](outputs[k], &values));
    fwrite(values, sizeof(float), elements, file);
  }
  fclose(file);
  _Exit(0); /* what the library frees at exit is no part of the answer */
}
