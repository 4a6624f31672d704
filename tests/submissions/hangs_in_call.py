import time


def double(x):
    print("about to wait")
    while True:
        time.sleep(1)
