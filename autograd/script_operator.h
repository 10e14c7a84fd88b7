// TorchScript's way into a backward pass: the operator aten::dist_backward.
#pragma once

namespace torchwire {

/// From now on scripts that call torch.distributed.autograd.backward begin at torchwire::backward(). May be called
/// again. Throws std::runtime_error when this torch's operator has another signature.
/// Call it at import, while no script is being compiled.
void replaceScriptOperator();

} // namespace torchwire
