// What a process is before it opens a plan: budgets of memory count from there.
#include <vector>

#include "../../include/measure.h"
#include "../library/onednn.h"
#include "../session/guarded.h"
#include "../session/pages.h"

namespace {

using library::Onednn;

constexpr Word VALUES = 1 << 16, FLOAT32 = 3, ROW = 2, ADD = 0x1FFF0, FIRST = 1, SECOND = 2, TARGET = 17;

// Execute something small on so many threads, so that what the library does at first use is no plan's.
void warm_up(const Onednn& dnnl, Word threads) {
  std::vector<float> values(VALUES);
  const Word engine = dnnl.places().at_engine, stream = dnnl.stream();
  Word dims[format::DIMS] = {VALUES}, descriptor = 0, attributes = 0, made = 0, primitive = 0, memory = 0;
  dnnl.set_threads(static_cast<int>(threads));
  using loops::address;
  dnnl.call("dnnl_memory_desc_create_with_tag", address(&descriptor), 1, address(dims), FLOAT32, ROW);
  dnnl.call("dnnl_primitive_attr_create", address(&attributes));
  dnnl.call("dnnl_binary_primitive_desc_create", address(&made), engine, ADD, descriptor, descriptor, descriptor, attributes);
  dnnl.call("dnnl_primitive_create", address(&primitive), made);
  dnnl.call("dnnl_memory_create", address(&memory), descriptor, engine, address(values.data()));
  const Word arguments[] = {FIRST, memory, SECOND, memory, TARGET, memory};
  dnnl.call("dnnl_primitive_execute", primitive, stream, 3, address(arguments));
  dnnl.call("dnnl_stream_wait", stream);
  dnnl.call("dnnl_memory_destroy", memory);
  dnnl.call("dnnl_primitive_destroy", primitive);
  dnnl.call("dnnl_primitive_desc_destroy", made);
  dnnl.call("dnnl_primitive_attr_destroy", attributes);
  dnnl.call("dnnl_memory_desc_destroy", descriptor);
  dnnl.end_stream(stream);
}

}  // namespace

EP_EXPORT ep_status ep_measure_ready(const char* folder, const char* library, int alone, std::size_t* input_bytes) {
  return guarding::guarded(guarding::last_of_thread(), [&] {
    if (folder == nullptr) throw Error{EP_INPUT, "no folder was named", "ep_measure_ready", "name a plan folder"};
    const program::Program program(std::string(folder) + "/program.bin");
    const Onednn& dnnl = Onednn::load(library, program.text(program.facts().library));
    warm_up(dnnl, program.facts().threads);
    Word bytes = 0;
    for (const format::Border& input : program.rows<format::Border>(format::INPUTS)) bytes += rounded(input.bytes, format::UNIT);
    if (input_bytes != nullptr) *input_bytes = size(bytes);
    session::LibraryPages(dnnl.inside()).drop();  // what a session drops is not to be what idle was
    if (alone != 0 || session::narrow_limit(program) != format::NOTHING) session::give_up_unused();
  });
}
