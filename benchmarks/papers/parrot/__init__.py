"""The figures of Parrot: engines.py has the engines and ways of using them, graphs.py the applications."""
