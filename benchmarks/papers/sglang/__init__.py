"""The programs of SGLang in plain LangChain: programs.py has them, runs.py how they are run."""
