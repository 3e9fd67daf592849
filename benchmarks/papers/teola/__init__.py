"""The figures of Teola / Ayo: catalog.py has their names, testbed.py the engines, modes.py the baselines."""
