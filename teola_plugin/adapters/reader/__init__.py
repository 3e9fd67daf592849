"""The reader: finds the requests of a user's function by reading the function, never by running it.

values.py       the values: plain data, unknown values, foreign objects
heap.py         own objects, and their contents after an undecided branch
run.py          one evaluation: limits, copies of outside values, requests
source.py       the syntax tree of a code object, verified
scopes.py, expressions.py, statements.py, patterns.py
                the syntax tree, compiled to closures
calls.py        calls of functions, which are read in turn, and of known callables
natives.py      functions of Python and of libraries, by identity; methods.py, operators.py: of plain values
classes.py      allowed uses of classes and foreign objects
asking.py       requests, and the adapters' knowledge of the frameworks
prediction.py   evaluations, repeated as answers come
resuming.py, stacks.py
                reading on behind unread statements, from the stack of the framework's run
"""
