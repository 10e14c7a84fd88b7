"""A function whose forward pass works and whose backward pass fails."""

import torch


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, text):
        ctx.text = text
        return tensor * 2

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError(ctx.text)
