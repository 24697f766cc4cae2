import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Transactions back to back, by Apache Kafka's own client.
 *
 * <p>Each line of standard input is a measurement: address, places (topic:partition, with commas), records to
 * each place, producers, seconds, a name for their ids, how many transactions come before the clock runs, and
 * "transactions", or "plain" for groups of records that are acknowledged without one.
 * Each is answered by one line: "answer", the name, "ok", the transactions, the seconds, p50 and p99 in
 * milliseconds; or instead of "ok" and the figures "failed" and why. Other lines are what the client logs.
 */
public class Transactions {
    static final byte[] VALUE = new byte[100];

    record Work(
            String bootstrap,
            List<TopicPartition> places,
            int records,
            int producers,
            double seconds,
            String name,
            int warm,
            boolean isPlain) {

        static Work of(String line) {
            String[] words = line.split(" ");
            List<TopicPartition> places = new ArrayList<>();
            for (String place : words[1].split(",")) {
                int colon = place.lastIndexOf(':');
                int partition = Integer.parseInt(place.substring(colon + 1));
                places.add(new TopicPartition(place.substring(0, colon), partition));
            }
            return new Work(
                    words[0],
                    places,
                    Integer.parseInt(words[2]),
                    Integer.parseInt(words[3]),
                    Double.parseDouble(words[4]),
                    words[5],
                    Integer.parseInt(words[6]),
                    words[7].equals("plain"));
        }
    }

    /** The nanoseconds at which each transaction of a producer ended; the first is when the clock began. */
    static List<Long> run(Work work, int number, CyclicBarrier ready) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", work.bootstrap());
        if (!work.isPlain()) {
            properties.put("transactional.id", work.name() + "-" + number);
        }
        properties.put("key.serializer", ByteArraySerializer.class.getName());
        properties.put("value.serializer", ByteArraySerializer.class.getName());
        List<Long> moments = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties)) {
            if (!work.isPlain()) {
                producer.initTransactions();
            }
            for (int at = 0; at < work.warm(); at++) {
                transaction(producer, work);
            }
            ready.await(120, TimeUnit.SECONDS);
            long now = System.nanoTime();
            long end = now + (long) (work.seconds() * 1e9);
            moments.add(now);
            while (now < end) {
                transaction(producer, work);
                now = System.nanoTime();
                moments.add(now);
            }
        }
        return moments;
    }

    static void transaction(KafkaProducer<byte[], byte[]> producer, Work work) throws Exception {
        if (work.isPlain()) {
            List<Future<RecordMetadata>> sent = send(producer, work);
            producer.flush();
            for (Future<RecordMetadata> each : sent) {
                each.get();
            }
        } else {
            producer.beginTransaction();
            send(producer, work);
            producer.commitTransaction();
        }
    }

    static List<Future<RecordMetadata>> send(KafkaProducer<byte[], byte[]> producer, Work work) {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (TopicPartition place : work.places()) {
            for (int at = 0; at < work.records(); at++) {
                sent.add(producer.send(new ProducerRecord<>(place.topic(), place.partition(), null, VALUE)));
            }
        }
        return sent;
    }

    static String measure(Work work) throws Exception {
        CyclicBarrier ready = new CyclicBarrier(work.producers());
        ExecutorService threads = Executors.newFixedThreadPool(work.producers());
        try {
            List<Callable<List<Long>>> all = new ArrayList<>();
            for (int number = 0; number < work.producers(); number++) {
                int mine = number;
                all.add(() -> run(work, mine, ready));
            }
            long began = Long.MAX_VALUE;
            long ended = Long.MIN_VALUE;
            List<Long> took = new ArrayList<>();
            for (Future<List<Long>> each : threads.invokeAll(all)) {
                List<Long> moments = each.get();
                began = Math.min(began, moments.get(0));
                ended = Math.max(ended, moments.get(moments.size() - 1));
                for (int at = 1; at < moments.size(); at++) {
                    took.add(moments.get(at) - moments.get(at - 1));
                }
            }
            long[] sorted = took.stream().mapToLong(Long::longValue).sorted().toArray();
            return "ok " + sorted.length + " " + (ended - began) / 1e9
                    + " " + quantile(sorted, 0.5) / 1e6 + " " + quantile(sorted, 0.99) / 1e6;
        } finally {
            threads.shutdownNow();
        }
    }

    static double quantile(long[] sorted, double share) {
        double position = share * (sorted.length - 1);
        int below = (int) position;
        int above = Math.min(below + 1, sorted.length - 1);
        return sorted[below] + (sorted[above] - sorted[below]) * (position - below);
    }

    public static void main(String[] arguments) throws Exception {
        Arrays.fill(VALUE, (byte) 'x');
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Work work = Work.of(line);
            String answer;
            try {
                answer = measure(work);
            } catch (Throwable error) {
                error.printStackTrace();
                answer = "failed " + error.toString().replace('\n', ' ');
            }
            System.out.println("answer " + work.name() + " " + answer);
        }
    }
}
