import re


class Shape:
    def __init__(self, sides):
        self.sides = sides

    def area(self):
        return sum(side * side for side in self.sides)


def words(seed, count):
    state = seed
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2147483648
        yield "word%d" % (state >> 16 & 1023)


def fibonacci(number):
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


for seed in range(1000):
    counts = {}
    for word in words(seed, 300):
        counts[word] = counts.get(word, 0) + 1
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join("%s=%d" % item for item in ranked)
    digits = re.findall(r"\d+=[2-9]", text)
    areas = {n: Shape(range(n)).area() for n in range(20)}
    print(seed, len(ranked), len(digits), fibonacci(10), sum(areas.values()))
