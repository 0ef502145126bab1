"""Grading of exercise notebooks: the format, the grafting of answers, the sandbox, the reports."""
