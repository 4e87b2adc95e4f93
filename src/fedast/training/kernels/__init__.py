"""Copies of one model side by side, each with its own parameters and its own mini-batch.

The parameters of C copies are tensors with a leading axis of length C, and so
are inputs and labels; a local step of all copies is one pass over such tensors.
``general`` does this for any module that torch.func can map over; ``layers`` and
``lstm`` are hand-written and faster, for the paper's models and models like them.
"""
