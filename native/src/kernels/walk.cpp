#include "kernels.h"

// Rows lie at even distances along the last axis of the loop; places of axes before are counted as if these were
// one.
Walk::Walk(const Word* block, const Word* at, int operands)
    : count(block[AT_ROW]), block_(block), at_(at), operands_(operands) {
  const Word before = block[AT_RANK] - 1;
  inner_ = left_ = before >= 0 ? block[AT_DIMS + before] : 1;
  for (Word axis = 0; axis < before; axis++) outers_ *= block[AT_DIMS + axis];
  for (int k = 0; k < operands; k++) {
    const Word* own = told(block, k);
    by[k] = own[STEP];
    moves_[k] = before >= 0 ? own[STRIDES + before] * own[BYTES] : 0;
  }
  locate();
}

bool Walk::next() {
  if (--left_ > 0) {
    for (int k = 0; k < operands_; k++) places[k] += moves_[k];
    return true;
  }
  if (++outer_ == outers_) return false;
  left_ = inner_;
  locate();
  return true;
}

void Walk::locate() {
  const Word *dims = block_ + AT_DIMS, last = block_[AT_OPERANDS] - 1;
  for (int k = 0; k < operands_; k++) {
    const Word* own = told(block_, k);
    Word place = own[STARTS], outer = outer_;
    for (Word axis = block_[AT_RANK] - 2; axis >= 0; axis--) {
      place += outer % dims[axis] * own[STRIDES + axis];
      outer /= dims[axis];
    }
    places[k] = at_[k < last ? k : last] + place * own[BYTES];
  }
}
