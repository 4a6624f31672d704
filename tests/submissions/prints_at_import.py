print("hello from the file")


def double(x):
    return x * 2
