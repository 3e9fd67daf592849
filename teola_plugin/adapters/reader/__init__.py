"""The reader: what a user's function will ask for, found by reading it, never by running it.

values.py       what it computes with: plain data, unknown values, objects of others
heap.py         its own objects, and what they hold after a branch that is not decided yet
run.py          one evaluation: limits, copies of what comes from outside, what it asks for
source.py       the syntax tree of a code object, for certain
scopes.py, expressions.py, statements.py, patterns.py
                the syntax tree, compiled to closures
calls.py        calls of functions, which are read in turn, and of what is known
natives.py      functions of Python and of libraries, by identity; methods.py, operators.py: of plain values
classes.py      what may be done with classes and objects of others
asking.py       requests, and what adapters know of their frameworks
prediction.py   evaluations, repeated as answers come
resuming.py, stacks.py
                reading on behind what is not read, from the stack of the framework's run
"""
