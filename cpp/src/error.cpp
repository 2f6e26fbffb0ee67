// The destructors are out of line so that each class has one type_info, shared by every library that links the core.
#include "astrai/error.h"

namespace astrai {

Error::~Error() = default;
KernelUnavailableError::~KernelUnavailableError() = default;

}  // namespace astrai
