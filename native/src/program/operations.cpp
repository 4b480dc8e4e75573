// Checks of operations: what each of oneDNN's functions is given, so that a number can never stand for a pointer, nor a
// handle for one of another kind, and no object is used by a thread before it was made.
#include <algorithm>
#include <string>

#include "checks.h"

using namespace program;
using loops::FLOATS;
using loops::INTEGERS;

namespace {

constexpr Word DIMS_BYTES = 96, AXES_BYTES = 48;  // `dnnl_dims_t`; an int for each axis

// Arguments of functions, a letter each. Made: D a descriptor, A attributes, P post-operations, I a primitive, Q what
// describes one, M a memory; small: given. o: a descriptor or none. n: a number, t: of threads, c: dims, i: axes,
// s: descriptors, as many as the argument two before says, m: an address in memory, e: the engine, 0: no address.
struct Signature {
  const char *name, *arguments;
  loops::Kind kind = loops::CALL;
};
constexpr Signature SIGNATURES[] = {
    {"dnnl_memory_desc_create_with_tag", "Dncnn"},
    {"dnnl_memory_desc_create_with_strides", "Dncnc"},
    {"dnnl_memory_desc_create_submemory", "Ddcc"},
    {"dnnl_memory_desc_permute_axes", "Ddi"},
    {"dnnl_memory_create", "Mdem"},
    {"dnnl_primitive_attr_create", "A"},
    {"dnnl_primitive_attr_set_scratchpad_mode", "an"},
    {"dnnl_primitive_attr_set_post_ops", "ap"},
    {"dnnl_primitive_attr_set_scales_mask", "ann"},
    {"dnnl_primitive_attr_set_zero_points_mask", "ann"},
    {"dnnl_post_ops_create", "P"},
    {"dnnl_post_ops_append_eltwise", "pn"},
    {"dnnl_post_ops_append_sum", "pnn"},
    {"dnnl_post_ops_append_binary", "pnd"},
    {"dnnl_primitive_create", "Iq"},
    {"dnnl_convolution_forward_primitive_desc_create", "Qennddodcccca"},
    {"dnnl_deconvolution_forward_primitive_desc_create", "Qennddodcccca"},
    {"dnnl_layer_normalization_forward_primitive_desc_create", "Qenddona"},
    {"dnnl_inner_product_forward_primitive_desc_create", "Qenddoda"},
    {"dnnl_matmul_primitive_desc_create", "Qeddoda"},
    {"dnnl_reorder_primitive_desc_create", "Qdedea"},
    {"dnnl_concat_primitive_desc_create", "Qednnsa"},
    {"dnnl_binary_primitive_desc_create", "Qenddda"},
    {"dnnl_eltwise_forward_primitive_desc_create", "Qenndda"},
    {"dnnl_pooling_forward_primitive_desc_create", "Qennddccccca"},
    {"dnnl_lrn_forward_primitive_desc_create", "Qennddna"},
    {"dnnl_softmax_forward_primitive_desc_create", "Qennddna"},
    {"dnnl_shuffle_forward_primitive_desc_create", "Qenddnna"},
    {"dnnl_resampling_forward_primitive_desc_create", "Qenn0dda"},
    {"dnnl_lstm_forward_primitive_desc_create", "Qenndooddooodoona"},
    {"dnnl_gru_forward_primitive_desc_create", "Qenndoddodona"},
    {"dnnl_lbr_gru_forward_primitive_desc_create", "Qenndoddodona"},
    {"dnnl_vanilla_rnn_forward_primitive_desc_create", "Qennndoddodona"},
    {"dnnl_primitive_desc_query_md", "qnn", loops::ASK},
    {"omp_set_num_threads", "t", loops::TELL},
};
constexpr Signature COPIED{"", "nd", loops::COPY}, WALKED{"", "qw", loops::WALK};  // w: a text
constexpr const char *NO_OBJECT = "an operation names no object of its kind", *NO_WORD = "an operation names no word",
                     *OUTSIDE = "a memory lies outside of the arena", *NO_PART = "operations lack a part";

Layout::Kind kind_of(char letter) {
  switch (letter) {
    case 'd': case 'D': case 'o': return Layout::DESCRIPTOR;
    case 'a': case 'A': return Layout::ATTRIBUTES;
    case 'p': case 'P': return Layout::POST_OPS;
    case 'I': return Layout::PRIMITIVE;
    case 'q': case 'Q': return Layout::DESCRIBED;
    case 'M': return Layout::MEMORY;
    default: return Layout::NOTHING;
  }
}

}  // namespace

Layout::Kind Layout::kind(Word handle) const {
  if (handle < 0 || handle >= handles()) return NOTHING;
  if (handle < descriptors) return DESCRIPTOR;
  if (handle >= first_memory()) return MEMORY;
  const bool first = (handle - descriptors) % 2 == 0;
  if (handle < first_primitive()) return first ? ATTRIBUTES : POST_OPS;
  return first ? PRIMITIVE : DESCRIBED;
}

Word Layout::group_of(Word handle) const {
  if (handle < descriptors) return handle;
  return handle < first_memory() ? descriptors + (handle - descriptors) / 2 : handle - attributes - primitives;
}

namespace {

class Operations : Held {
 public:
  explicit Operations(const Program& program)
      : Held(program),
        kinds_(rows<Word>(format::KINDS)),
        functions_(rows<Word>(format::FUNCTION_OF)),
        makes_(rows<Word>(format::MADE)),
        values_(rows<Word>(format::VALUES)),
        roles_(rows<loops::Role>(format::ROLES)),
        made_(size(layout_.handles())),
        copied_(size(std::min(facts_.scratch, kinds_.length)), format::NOTHING) {}

  Needs checked() {
    const auto starts = rows<Word>(format::STARTS);
    const Word count = kinds_.length, groups = layout_.groups();
    require(functions_.length == count && makes_.length == count && facts_.scratch <= count, NO_PART);
    require(values_.length == INTEGERS * count && roles_.length == INTEGERS * count, NO_PART);
    require(rows<float>(format::FLOATS).length == FLOATS * count && starts[0] == 0 && starts[groups] == count, NO_PART);
    find_signatures();
    for (group_ = 0; group_ < groups; ++group_) {
      needs_.begins.push_back(static_cast<Word>(needs_.groups.size()));
      const Word begin = starts[group_], end = starts[group_ + 1];
      const bool single = group_ < layout_.descriptors || group_ >= groups - layout_.memories;
      require(begin < end && end <= count && (!single || end == begin + 1), "a group of operations makes no object");
      for (Word operation = begin; operation < end; ++operation) check(operation);
    }
    needs_.begins.push_back(static_cast<Word>(needs_.groups.size()));
    return std::move(needs_);
  }

 private:
  void find_signatures() {
    for (const Word offset : rows<Word>(format::FUNCTIONS)) {
      const std::string name = program_.text(offset);
      const auto named = [&](const Signature& one) { return name == one.name; };
      const auto found = std::find_if(std::begin(SIGNATURES), std::end(SIGNATURES), named);
      require(found != std::end(SIGNATURES), "it calls a function that no program calls");
      signatures_.push_back(found);
    }
  }

  const Signature& signature(Word operation) const {
    const Word kind = kinds_[operation], function = functions_[operation];
    require(0 <= function && function < static_cast<Word>(signatures_.size()), "an operation calls no function");
    if (kind == loops::COPY) return COPIED;
    if (kind == loops::WALK) return WALKED;
    const Signature* found = at(signatures_, function);
    require(found->kind == kind, "an operation calls a function in another way");
    return *found;
  }

  void check(Word operation) {
    const Signature& called = signature(operation);
    const Word* values = &values_[INTEGERS * operation];
    const loops::Role* roles = &roles_[INTEGERS * operation];
    Word given = 0;
    for (; called.arguments[given] != 0; ++given) argument(called.arguments[given], roles[given], values, given);
    for (; given < INTEGERS; ++given) require(roles[given] == loops::NUMBER, "an operation is given too much");
    if (called.kind == loops::ASK) make(makes_[operation], Layout::DESCRIPTOR);
    if (called.kind == loops::COPY) {
      require(0 <= values[0] && values[0] < facts_.scratch, NO_WORD);
      at(copied_, values[0]) = group_;
    }
  }

  void argument(char letter, loops::Role role, const Word* values, Word place) {
    const Word value = values[place];
    const auto as = [&](loops::Role wanted) { require(role == wanted, "an operation is given another argument"); };
    switch (letter) {
      case 'D': case 'A': case 'P': case 'I': case 'Q': case 'M':
        as(loops::RESULT);
        return make(value, kind_of(letter));
      case 'o':
        if (role == loops::NUMBER) return require(value == 0, NO_OBJECT);
        [[fallthrough]];
      case 'd': case 'a': case 'p': case 'q': as(loops::HANDLE); return need(value, kind_of(letter));
      case 'c': as(loops::CONSTANT); constant(value, DIMS_BYTES); return;
      case 'i': as(loops::CONSTANT); constant(value, AXES_BYTES); return;
      case 'w': as(loops::CONSTANT); constant(value, 1); return;  // the last bytes are zero: it ends
      case 's': as(loops::SCRATCH); return listed(value, values[place - 2]);
      case 'm': as(loops::MEMORY); return require_inside(value, 0, facts_.arena_bytes, OUTSIDE);
      case 'e': as(loops::ENGINE); return;
      case 't': as(loops::NUMBER); return require(1 <= value && value <= facts_.threads, "it asks for other threads");
      case '0': as(loops::NUMBER); return require(value == 0, NO_OBJECT);
      default: as(loops::NUMBER);
    }
  }

  // Each object is made once, by its own group.
  void make(Word handle, Layout::Kind kind) {
    require(layout_.kind(handle) == kind && layout_.group_of(handle) == group_, NO_OBJECT);
    require(!at(made_, handle), "an object is made twice");
    at(made_, handle) = true;
  }

  void need(Word handle, Layout::Kind kind) {
    require(layout_.kind(handle) == kind, NO_OBJECT);
    const Word group = layout_.group_of(handle);
    if (group == group_)
      require(at(made_, handle), "an object is used before it is made");
    else
      needs_.groups.push_back(group);
  }

  // Words that the same group has copied handles to.
  void listed(Word first, Word count) const {
    require(count >= 1, NO_WORD);
    require_inside(first, count, facts_.scratch, NO_WORD);
    for (Word k = first; k < first + count; ++k) require(at(copied_, k) == group_, NO_WORD);
  }

  const Array<const Word> kinds_, functions_, makes_, values_;
  const Array<const loops::Role> roles_;
  std::vector<const Signature*> signatures_;
  std::vector<char> made_;
  std::vector<Word> copied_;
  Word group_ = 0;
  Needs needs_;
};

}  // namespace

Needs program::check_operations(const Program& program) { return Operations(program).checked(); }
