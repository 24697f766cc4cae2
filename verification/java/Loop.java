import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Consume, transform, produce: one member of a group, as an application would write it.
 *
 * <p>Arguments: the address, the number of the instance, the seed. It is a static member. Another thread wakes the
 * consumer at random times, and now and then the loop takes longer than max.poll.interval.ms in the middle of a
 * transaction. Each line of the output is a phase of the loop, or what went wrong. An error after which this
 * producer cannot go on ends the process; whoever started it starts it again.
 */
public class Loop {
    static final int POLL_INTERVAL_MS = 3_000;
    static final int ENDS_FOR_GOOD = 3;

    final String bootstrap;
    final String instance;
    final Random chance;
    final AtomicBoolean stopping = new AtomicBoolean();
    final KafkaConsumer<String, String> consumer;
    final KafkaProducer<String, String> producer;

    Loop(String bootstrap, String instance, long seed) {
        this.bootstrap = bootstrap;
        this.instance = instance;
        this.chance = new Random(seed);
        Map<String, Object> common = Map.of(
                "bootstrap.servers", bootstrap,
                "reconnect.backoff.ms", 20,
                "reconnect.backoff.max.ms", 200,
                "client.id", "loop-" + instance);
        Map<String, Object> consuming = new HashMap<>(common);
        consuming.put("group.id", "loop");
        consuming.put("group.instance.id", instance);
        consuming.put("isolation.level", "read_committed");
        consuming.put("auto.offset.reset", "earliest");
        consuming.put("enable.auto.commit", false);
        consuming.put("session.timeout.ms", 3_000);
        consuming.put("heartbeat.interval.ms", 300);
        consuming.put("max.poll.interval.ms", POLL_INTERVAL_MS);
        consuming.put("max.poll.records", 200);
        Map<String, Object> producing = new HashMap<>(common);
        producing.put("transactional.id", "loop-" + instance);
        producing.put("transaction.timeout.ms", 15_000);
        producing.put("linger.ms", 2);
        producing.put("max.block.ms", 30_000);
        consumer = new KafkaConsumer<>(consuming, new StringDeserializer(), new StringDeserializer());
        producer = new KafkaProducer<>(producing, new StringSerializer(), new StringSerializer());
    }

    public static void main(String[] arguments) throws Exception {
        Loop loop = new Loop(arguments[0], arguments[1], Long.parseLong(arguments[2]));
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            loop.stopping.set(true);
            loop.consumer.wakeup();
            try {
                main.join();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }));
        Thread waker = new Thread(loop::wake);
        waker.setDaemon(true);
        waker.start();
        try {
            loop.run();
        } catch (Throwable error) {
            say("ended " + error);
            Runtime.getRuntime().halt(ENDS_FOR_GOOD);
        }
    }

    static void say(String phase) {
        System.out.println(phase.replace('\n', ' '));
        System.out.flush();
    }

    /** Wakes the consumer, as another thread of the application would. */
    void wake() {
        Random moments = new Random(instance.hashCode() + 1);
        while (true) {
            pause(200 + moments.nextInt(2_000));
            consumer.wakeup();
        }
    }

    void run() {
        producer.initTransactions();
        say("started");
        consumer.subscribe(Set.of("in"));
        while (!stopping.get()) {
            try {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                if (!records.isEmpty()) {
                    transform(records);
                }
            } catch (WakeupException error) {
                say("woken");
            }
        }
        consumer.close(org.apache.kafka.clients.consumer.CloseOptions.timeout(Duration.ofSeconds(10)));
        producer.close(Duration.ofSeconds(10));
        say("stopped");
    }

    /** One transaction. It is aborted if anything goes wrong, and its input is read again. */
    void transform(ConsumerRecords<String, String> records) {
        try {
            producer.beginTransaction();
            say("begun");
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (ConsumerRecord<String, String> record : records) {
                producer.send(new ProducerRecord<>("out", record.key(), record.value()));
                offsets.put(
                        new TopicPartition(record.topic(), record.partition()),
                        new OffsetAndMetadata(record.offset() + 1));
            }
            say("sent");
            if (chance.nextInt(150) == 0) {
                say("slow");
                pause(POLL_INTERVAL_MS + 2_000);
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            say("offsets");
            commit();
            say("committed");
        } catch (ProducerFencedException | FencedInstanceIdException error) {
            throw error;
        } catch (KafkaException error) {
            say("aborting " + error);
            producer.abortTransaction();
            again();
        }
    }

    /** The outcome of a commit without an answer is not known: it has to be asked for again. */
    void commit() {
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException | InterruptException error) {
                say("repeating " + error);
            }
        }
    }

    /** Goes back to what is committed. */
    void again() {
        Set<TopicPartition> parts = consumer.assignment();
        while (true) {
            try {
                Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(parts);
                for (TopicPartition part : parts) {
                    OffsetAndMetadata offset = committed.get(part);
                    if (offset == null) {
                        consumer.seekToBeginning(Set.of(part));
                    } else {
                        consumer.seek(part, offset);
                    }
                }
                return;
            } catch (WakeupException error) {
                say("woken");
            } catch (TimeoutException error) {
                say("repeating " + error);
            }
        }
    }

    static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
