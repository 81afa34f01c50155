// Four threads make numbers, sort and hash them, and add the result up under a lock.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, ROUNDS = 600, NUMBERS = 2000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long total;

static int order(const void *left, const void *right) {
    int a = *(const int *)left, b = *(const int *)right;
    return (a > b) - (a < b);
}

static void *work(void *argument) {
    unsigned state = (unsigned)(long)argument;
    for (int round = 0; round < ROUNDS; round++) {
        int numbers[NUMBERS];
        unsigned long hash = 5381;
        for (int n = 0; n < NUMBERS; n++) {
            state = state * 1103515245u + 12345u;
            numbers[n] = (int)(state >> 8);
        }
        qsort(numbers, NUMBERS, sizeof *numbers, order);
        for (int n = 0; n < NUMBERS; n++) hash = hash * 33 ^ (unsigned)numbers[n];
        pthread_mutex_lock(&lock);
        total += hash;
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    for (long n = 0; n < THREADS; n++)
        if (pthread_create(&threads[n], NULL, work, (void *)(n + 1))) return 1;
    for (int n = 0; n < THREADS; n++) pthread_join(threads[n], NULL);
    printf("%lu\n", total);
}
