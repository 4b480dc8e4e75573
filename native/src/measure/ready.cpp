// What a process is before it opens a plan: budgets of memory count from there.
#include <algorithm>
#include <vector>

#include "../../include/measure.h"
#include "../library/onednn.h"
#include "../session/guarded.h"
#include "../session/pages.h"

namespace {

using library::Onednn;

constexpr Word VALUES = 1 << 16, FLOAT32 = 3, ROW = 2, ADD = 0x1FFF0, FIRST = 1, SECOND = 2, TARGET = 17;

// Functions of more arguments than `Onednn::call` passes.
void call(const Onednn& dnnl, const char* name, std::initializer_list<Word> given) {
  Word all[7] = {};
  std::copy(given.begin(), given.end(), all);
  const auto function = reinterpret_cast<loops::Function>(dnnl.function(name));
  if (function == nullptr) throw Error{EP_DEVICE, std::string("this oneDNN has no function ") + name, dnnl.path(), ""};
  const Word status = function(all[0], all[1], all[2], all[3], all[4], all[5], all[6], 0, 0, 0, 0,
                               0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  if (static_cast<loops::Status>(status) != 0) dnnl.failed_execution(static_cast<loops::Status>(status));
}

// Execute something small on so many threads, so that what the library does at first use is no plan's.
void warm_up(const Onednn& dnnl, Word threads) {
  std::vector<float> values(VALUES);
  const Word engine = dnnl.places().at_engine, stream = dnnl.stream();
  Word dims[format::DIMS] = {VALUES}, descriptor = 0, attributes = 0, made = 0, primitive = 0, memory = 0;
  dnnl.set_threads(static_cast<int>(threads));
  using loops::address;
  call(dnnl, "dnnl_memory_desc_create_with_tag", {address(&descriptor), 1, address(dims), FLOAT32, ROW});
  call(dnnl, "dnnl_primitive_attr_create", {address(&attributes)});
  call(dnnl, "dnnl_binary_primitive_desc_create",
       {address(&made), engine, ADD, descriptor, descriptor, descriptor, attributes});
  call(dnnl, "dnnl_primitive_create", {address(&primitive), made});
  call(dnnl, "dnnl_memory_create", {address(&memory), descriptor, engine, address(values.data())});
  const struct {
    Word number, memory;
  } arguments[] = {{FIRST, memory}, {SECOND, memory}, {TARGET, memory}};
  call(dnnl, "dnnl_primitive_execute", {primitive, stream, 3, address(arguments)});
  call(dnnl, "dnnl_stream_wait", {stream});
  call(dnnl, "dnnl_memory_destroy", {memory});
  call(dnnl, "dnnl_primitive_destroy", {primitive});
  call(dnnl, "dnnl_primitive_desc_destroy", {made});
  call(dnnl, "dnnl_primitive_attr_destroy", {attributes});
  call(dnnl, "dnnl_memory_desc_destroy", {descriptor});
  call(dnnl, "dnnl_stream_destroy", {stream});
}

}  // namespace

EP_EXPORT ep_status ep_measure_ready(const char* folder, const char* library, int alone, std::size_t* input_bytes) {
  return guarding::guarded(guarding::last_of_thread(), [&] {
    if (folder == nullptr) throw Error{EP_INPUT, "no folder was named", "ep_measure_ready", "name a plan folder"};
    const program::Program program(std::string(folder) + "/program.bin", session::plan_again(format::MEMORY));
    const Onednn& dnnl = Onednn::load(library, program.text(program.facts().library));
    warm_up(dnnl, program.facts().threads);
    const auto inputs = program.rows<format::Border>(format::INPUTS);
    if (input_bytes != nullptr) *input_bytes = 0;
    for (Word k = 0; input_bytes != nullptr && k < inputs.length; ++k)
      *input_bytes += static_cast<std::size_t>((inputs[k].bytes + format::UNIT - 1) / format::UNIT * format::UNIT);
    session::LibraryPages(dnnl.inside()).drop();  // what a session drops is not to be what idle was
    if (alone != 0 || session::narrow_limit(program) != format::NOTHING) session::give_up_unused();
  });
}
