"""The real torch_npu wheel on a machine without CANN or a card: its operators' schemas and shape functions, run on fake tensors.

torch_npu links against CANN's libraries, of which it needs some eighty symbols to be imported. `stub.py` makes libraries that define
them and do nothing; `wheel.py` installs the wheel of requirements/npu.txt beside, never into, the environment of the tests; `bed.py`
runs a module in a process that sees both. There the device `npu` exists, and under FakeTensorMode every call goes through the wheel's
own schema and shape function. No number is computed: values and speed need a card.
"""
