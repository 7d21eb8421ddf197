"""The writing tasks people can practise."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    title: str
    prompt: str
    least_words: int
    takes_image: bool = False


TASKS = {
    "academic-task-1": Task(
        "Academic Task 1",
        "Describe the chart, map or process of your task image: select the main features and "
        "compare where it makes sense. Add the image if you have it.",
        150,
        takes_image=True,
    ),
    "general-task-1": Task(
        "General Task 1",
        "Write a letter to a neighbour whose dog has kept you awake. Say what happened, how it "
        "affected you, and what you would like to be done.",
        150,
    ),
    "task-2": Task(
        "Task 2",
        "Some people say that working from home makes a company weaker, others that it makes it "
        "stronger. Discuss both views and give your own opinion.",
        250,
    ),
}
