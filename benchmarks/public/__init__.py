"""Public LangChain and LangGraph applications and the service that they are run against."""
