import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import java.util.UUID;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Counts words with Kafka Streams: exactly_once_v2, state in a store with a changelog.
 *
 * <p>Each line of the output is an outcome, a scenario, and why. With the argument "instance" it is one instance
 * of the application, to be killed.
 */
public class WordCount {
    static final List<String> WORDS = List.of("apple", "berry", "cherry", "date", "elder", "fig", "grape");
    static final long LONG_MS = 90_000;

    final String bootstrap;
    final Path directory;
    final String application = "words-" + UUID.randomUUID().toString().substring(0, 8);
    final String input = application + "-in";
    final String output = application + "-out";
    final Map<String, Long> expected = new TreeMap<>();
    final Random chance = new Random(7);

    WordCount(String bootstrap, Path directory) throws Exception {
        this.bootstrap = bootstrap;
        this.directory = directory;
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(input, 2, (short) 1), new NewTopic(output, 2, (short) 1)))
                    .all()
                    .get();
        }
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length > 2) {
            instance(arguments[0], arguments[3], Path.of(arguments[1]), "classic").start();
            Thread.sleep(Long.MAX_VALUE);
        }
        play("words are counted", arguments, WordCount::counted);
        play("state comes back from the changelog", arguments, WordCount::restored);
        play("two instances share, and one takes over", arguments, WordCount::taken);
        play("an instance is killed", arguments, WordCount::killed);
        play("the streams protocol (KIP-1071)", arguments, WordCount::withItsOwnProtocol);
        System.exit(0);
    }

    interface Scenario {
        void play(WordCount words) throws Exception;
    }

    static void play(String name, String[] arguments, Scenario scenario) {
        try {
            String place = UUID.randomUUID().toString();
            scenario.play(new WordCount(arguments[0], Path.of(arguments[1], place)));
            System.out.println("passed " + name);
        } catch (Throwable error) {
            error.printStackTrace();
            System.out.println("failed " + name + ": " + error.toString().replace('\n', ' '));
        }
    }

    void counted() throws Exception {
        try (KafkaStreams streams = started("classic", "a")) {
            feed(500);
            shows();
        }
    }

    void restored() throws Exception {
        try (KafkaStreams streams = started("classic", "a")) {
            feed(300);
            shows();
        }
        try (KafkaStreams streams = instance(bootstrap, application, directory.resolve("b"), "classic")) {
            streams.start();
            feed(300);
            shows();
        }
    }

    void taken() throws Exception {
        KafkaStreams first = started("classic", "a");
        try (KafkaStreams second = started("classic", "b")) {
            feed(300);
            shows();
            first.close(Duration.ofSeconds(30));
            feed(300);
            shows();
        }
    }

    void killed() throws Exception {
        Process process = new ProcessBuilder(
                        ProcessHandle.current().info().command().orElse("java"),
                        "-Xmx512m",
                        "-cp",
                        System.getProperty("java.class.path"),
                        "WordCount",
                        bootstrap,
                        directory.resolve("a").toString(),
                        "instance",
                        application)
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .start();
        try {
            feed(300);
            until(() -> !found().isEmpty(), "anything from the instance that will be killed");
            feed(300);
        } finally {
            process.destroyForcibly().waitFor();
        }
        try (KafkaStreams streams = started("classic", "b")) {
            feed(300);
            shows();
        }
    }

    void withItsOwnProtocol() throws Exception {
        try (KafkaStreams streams = instance(bootstrap, application, directory.resolve("a"), "streams")) {
            Throwable[] why = new Throwable[1];
            streams.setUncaughtExceptionHandler(error -> {
                why[0] = error;
                return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler
                        .StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.start();
            feed(100);
            until(() -> why[0] != null || found().equals(expected), "words");
            if (why[0] != null) {
                throw new IllegalStateException(root(why[0]));
            }
        }
    }

    static Throwable root(Throwable error) {
        return error.getCause() == null ? error : root(error.getCause());
    }

    KafkaStreams started(String protocol, String place) {
        KafkaStreams streams = instance(bootstrap, application, directory.resolve(place), protocol);
        streams.start();
        until(() -> streams.state() == KafkaStreams.State.RUNNING, "a running instance");
        return streams;
    }

    static KafkaStreams instance(String bootstrap, String application, Path directory, String protocol) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(application + "-in")
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count(Materialized.as("counts"))
                .toStream()
                .to(application + "-out", Produced.with(Serdes.String(), Serdes.Long()));
        Properties config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        config.put(StreamsConfig.STATE_DIR_CONFIG, directory.toString());
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        config.put(StreamsConfig.GROUP_PROTOCOL_CONFIG, protocol);
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        config.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
        config.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        if (protocol.equals("classic")) {
            config.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6_000);
            config.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 500);
        }
        config.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 10_000);
        return new KafkaStreams(builder.build(), config);
    }

    /** Writes lines of words, and notes how often each word is in all that was written. */
    void feed(int lines) {
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(common(), new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < lines; number++) {
                StringBuilder line = new StringBuilder();
                for (int place = 0; place < 5; place++) {
                    String word = WORDS.get(chance.nextInt(WORDS.size()));
                    expected.merge(word, 1L, Long::sum);
                    line.append(word).append(' ');
                }
                producer.send(new ProducerRecord<>(input, "" + number, line.toString().trim()));
            }
        }
    }

    void shows() {
        until(() -> found().equals(expected), "the counts " + expected);
        Map<String, Long> last = found();
        if (!last.equals(expected)) {
            throw new IllegalStateException("then it was " + last);
        }
    }

    /** The last count of each word, as a reader of committed records sees it; no count may ever go down. */
    Map<String, Long> found() {
        Map<String, Object> config = new HashMap<>(common());
        config.put("isolation.level", "read_committed");
        Map<String, Long> counts = new TreeMap<>();
        try (KafkaConsumer<String, Long> consumer =
                new KafkaConsumer<>(config, new StringDeserializer(), new LongDeserializer())) {
            List<TopicPartition> parts = List.of(new TopicPartition(output, 0), new TopicPartition(output, 1));
            consumer.assign(parts);
            consumer.seekToBeginning(parts);
            Map<TopicPartition, Long> ends = consumer.endOffsets(parts);
            while (parts.stream().anyMatch(part -> consumer.position(part) < ends.get(part))) {
                for (ConsumerRecord<String, Long> record : consumer.poll(Duration.ofMillis(200))) {
                    Long before = counts.put(record.key(), record.value());
                    if (before != null && before >= record.value()) {
                        throw new IllegalStateException(record.key() + " " + record.value() + " after " + before);
                    }
                }
            }
        }
        return counts;
    }

    Map<String, Object> common() {
        return Map.of("bootstrap.servers", bootstrap);
    }

    static void until(BooleanSupplier isSo, String what) {
        long end = System.currentTimeMillis() + LONG_MS;
        while (!isSo.getAsBoolean()) {
            if (System.currentTimeMillis() > end) {
                throw new IllegalStateException("not in time: " + what);
            }
            try {
                Thread.sleep(200);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
    }
}
